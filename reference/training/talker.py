"""Train the talker: text ids and what was said so far → the next frame's 31 codes.

Reads WORK/data and WORK/codec (and WORK/perception, if it is there, to judge the speech). Writes WORK/talker: weights,
figures.json, samples as WAV and the loss curve. First the true past is given; later, for many rows, the talker's own
speech takes its place while the codes to be said stay true, so that it learns to come back from its own mistakes.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from reference.model import VoiceChat
from reference.talker.backbone import TalkerBlock
from reference.talker.mog_head import MogLayer
from reference.training import content
from reference.training.data import chosen, read_clips, sentences
from reference.training.devices import choose_device, compile_blocks
from reference.training.loop import LoopSettings, Phase, Trainer
from reference.training.mixture import mixture_loss
from reference.training.model_files import (
    load_earlier,
    load_into,
    load_tensors,
    new_model,
    part_of,
    read_tokenizer,
    round_to_bf16,
    save_tensors,
    set_text_vocabulary,
)
from reference.training.options import settings_of, training_parser
from reference.training.rollout import Conditions, Rollout, VoicePrompt
from reference.training.speech_test import judge_speech
from reference.training.talker_rows import RowWriter, TalkerRows, read_codes
from reference.training.timelines import Planner
from reference.training.vocabularies import EOS

PREFIXES = ("talker.", "audio_prompt_latent")


@dataclass(frozen=True, kw_only=True)
class TalkerSettings:
    """Rows and losses."""

    loop: LoopSettings
    frames: int
    """Positions of a row, the voice prompt not counted."""
    rows: int
    pool: int
    """Different rows."""
    answers: int
    """How many different answers; 0 for all."""
    audio_gain: float
    """How much larger than by default `audio_proj` starts: its input is divided by the number of codebooks."""
    smoothing: float
    without_text: float
    """Share of rows without text, for guidance."""
    dropped: float
    """Share of past frames of which only the first few levels are heard."""
    own_from: float
    """Progress from which the talker hears itself."""
    own_rows: int
    """Rows that it speaks at a time."""
    own_every: int
    """Steps between two such times."""
    own_share: float
    """Share of a batch's rows whose past is its own."""
    judged: int
    """Answers that are spoken and judged at the end."""


class TalkerTraining(nn.Module):
    """The loss, with what it needs; parameters and the own speech are part of the state."""

    own_codes: Tensor
    own_index: Tensor
    silence: Tensor
    later: Tensor
    """Levels that are known when each round but the first begins: 1, 2, 5, 9."""

    def __init__(self, model: VoiceChat, pool: TalkerRows, settings: TalkerSettings) -> None:
        super().__init__()
        self.talker, self.audio_prompt_latent = model.talker, model.audio_prompt_latent
        self.settings = settings
        levels = model.config.tts_config.num_quantizers
        self.register_buffer("own_codes", torch.zeros(settings.own_rows, settings.frames, levels, dtype=torch.int16))
        self.register_buffer("own_index", torch.zeros(settings.own_rows, dtype=torch.int64))
        self.register_buffer("silence", model.codec_silence_tokens.clone())
        self._pool, self._conditions, self._prompt = pool, Conditions(model), VoicePrompt(model)
        counts = model.talker.counts
        self.register_buffer("later", torch.tensor([sum(counts[:index]) for index in range(1, len(counts))]))

    def trained(self) -> list[nn.Parameter]:
        """Everything but the codebooks."""
        return [self.audio_prompt_latent, *(p for name, p in self.talker.named_parameters() if name != "rvq_embs")]

    def loss(self) -> dict[str, Tensor]:
        """A batch with its true past."""
        rows = self._pool.take(self._draw(len(self._pool)))
        return self.loss_of(rows, rows.codes)

    def own_loss(self) -> dict[str, Tensor]:
        """A batch of rows that the talker has spoken; most of them with what it said as their past."""
        drawn = self._draw(len(self.own_index))
        rows = self._pool.take(self.own_index[drawn])
        own = torch.rand(len(drawn), 1, 1, device=drawn.device) < self.settings.own_share
        return self.loss_of(rows, torch.where(own, self.own_codes[drawn], rows.codes))

    def _draw(self, count: int) -> Tensor:
        return torch.randint(count, (self.settings.rows,), device=self.own_index.device)

    def loss_of(self, rows: TalkerRows, past: Tensor) -> dict[str, Tensor]:
        """Rows and the codes (B, T, Q) that count as having been said."""
        text, codes = rows.text.long(), rows.codes.long()
        hidden = self.hidden(text, past.long()).flatten(0, 1)
        codes, weight = codes.flatten(0, 1), rows.weight.flatten()
        known = self.later[torch.randint(len(self.later), (len(codes), 1), device=codes.device)]
        level = torch.arange(codes.shape[1], device=codes.device)
        partly = torch.where(level < known, codes, self.talker.mask_id)
        rest = self.talker.depthsum(torch.where(level < known, self.talker.mask_id, codes))
        x = torch.cat([hidden, hidden + self.talker.embed_codes(partly)])
        target = torch.cat([self.talker.depthsum(codes), rest])
        trunk = self.talker.mog_head(x)
        fit, choice = mixture_loss(self.talker.mog_head, trunk, target, self.settings.smoothing)
        both = torch.cat([weight, weight])
        fit, choice = ((part * both).sum() / both.sum() for part in (fit, choice))
        first = self._first_book_right(trunk, codes, weight)
        return {"loss": (fit + choice) / codes.shape[1], "fit": fit, "choice": choice, "first book": first}

    def hidden(self, text: Tensor, past: Tensor) -> Tensor:
        """Text ids (B, T), codes said (B, T, Q) → hidden states of the T positions (B, T, h)."""
        talker, settings, conditions = self.talker, self.settings, self._conditions
        mask = torch.full_like(past[:, :1], talker.mask_id)
        before = torch.cat([mask, past[:, :-1]], dim=1)
        before = torch.where((text == EOS).unsqueeze(2), self.silence, before)
        kept = torch.randint(past.shape[2] + 1, before.shape[:2], device=text.device)
        kept = torch.where(torch.rand(kept.shape, device=text.device) < settings.dropped, kept, past.shape[2])
        level = torch.arange(past.shape[2], device=text.device)
        before = torch.where(level < kept.unsqueeze(2), before, talker.mask_id)
        spelled = conditions.spelled()
        rows = len(text)
        heard = torch.cat([self._prompt.heard().expand(rows, -1, -1), talker.embed_codes(before)], dim=1)
        prompt_cond = conditions.of(spelled, self._prompt.text, self._prompt.mask)
        cond = torch.cat([prompt_cond.expand(rows, -1, -1), conditions.of(spelled, text)], dim=1)
        blind = torch.rand(rows, 1, 1, device=text.device) < settings.without_text
        cond = torch.where(blind, talker.null_emb, cond)
        hidden: Tensor = talker.backbone(talker.gated_fusion_audio_text(heard, cond))
        return hidden[:, prompt_cond.shape[1] :]

    @torch.no_grad()
    def _first_book_right(self, trunk: Tensor, codes: Tensor, weight: Tensor) -> Tensor:
        """Share of speech positions whose likeliest component falls on the true entry of the first book."""
        some = slice(0, min(4, self.settings.rows) * self.settings.frames)
        trunk = trunk[some]
        mean = self.talker.mog_head.mean(trunk, self.talker.mog_head.proj_logits(trunk).argmax(-1))
        right = self.talker.quantize(mean, 0, 1)[:, 0] == codes[some, 0]
        speech = weight[some] == 1
        return (right & speech).sum() / speech.sum().clamp_min(1)


class OwnSpeech:
    """Lets the talker speak random rows of the pool, from time to time."""

    def __init__(self, training: TalkerTraining, model: VoiceChat, pool: TalkerRows, graphs: bool) -> None:
        self.training, self.pool = training, pool
        settings = training.settings
        self.rollout = Rollout(model, settings.own_rows, settings.frames, graphs)

    def speak(self) -> None:
        """New rows, spoken with the weights as they are."""
        device = self.pool.text.device
        index = torch.randint(len(self.pool), (len(self.training.own_index),), device=device)
        self.training.own_index.copy_(index)
        self.training.own_codes.copy_(self.rollout.generate(self.pool.text[index].long()))


def prepare(model: VoiceChat, arguments: argparse.Namespace, settings: TalkerSettings) -> None:
    """Codebooks from the codec, characters from the tokenizer, a louder start for the past."""
    load_into(model, load_tensors(arguments.work / "codec"))
    set_text_vocabulary(model, arguments.work / "data")
    with torch.no_grad():
        model.talker.rvq_embs.copy_(torch.stack(list(model.codec.prvq.mus_list)))
        model.talker.gated_fusion_audio_text.audio_proj.weight.mul_(settings.audio_gain)
        # the encoder multiplies characters by sqrt(width)
        model.talker.embed_subword.embed_tokens.weight.mul_(model.config.tts_config.hidden_size**-0.5)
    model.talker.rvq_embs.requires_grad_(False)


def train(arguments: argparse.Namespace) -> None:
    """The whole step."""
    folder: Path = arguments.work / "talker"
    if (folder / "figures.json").is_file() and not arguments.again:
        print(f"talker: {folder} is complete")
        return
    device = choose_device(arguments)
    settings = settings_of(arguments, "talker", TalkerSettings)
    model = new_model(arguments, device)
    prepare(model, arguments, settings)
    load_earlier(model, folder)
    _, _, aria, _ = read_clips(arguments.work / "data")
    planner = Planner([], aria, read_tokenizer(arguments.work / "data"), "train")
    writer = RowWriter(planner, read_codes(arguments.work), model.codec_silence_tokens.cpu().numpy())
    texts = [text for text in content.answer_texts() if all(part in planner.aria for part in sentences(text))]
    texts = chosen(texts, settings.answers)
    pool = writer.random_rows(texts, settings.pool, settings.frames, np.random.default_rng(arguments.seed), device)
    print(
        f"talker: {len(texts)} answers on {len(pool)} rows, {float((pool.weight == 1).float().mean()):.0%} speech",
        flush=True,
    )

    def save() -> None:
        save_tensors(folder, part_of(model, PREFIXES))

    training = TalkerTraining(model, pool, settings).to(device)
    own = OwnSpeech(training, model, pool, device.type == "cuda" and arguments.graphs)
    if device.type == "cuda" and arguments.compile:
        compile_blocks(model.talker, TalkerBlock, MogLayer)
    trainer = Trainer("talker", folder, training, training.trained(), settings.loop, arguments, save)
    trainer.run(
        [
            Phase(until=settings.own_from, computes=(training.loss,)),
            Phase(
                until=1.0, computes=(training.own_loss,), begin=own.speak, every=settings.own_every, callback=own.speak
            ),
        ]
    )
    round_to_bf16(training)
    save()
    torch.set_float32_matmul_precision("highest")
    with torch.compiler.set_stance("force_eager"):
        figures = judge_speech(model, writer, texts, settings.judged, arguments.work, arguments.seed)
    (folder / "figures.json").write_text(json.dumps(figures, indent=1))
    print(f"talker: {json.dumps(figures)}", flush=True)


if __name__ == "__main__":
    train(training_parser("talker", __doc__).parse_args())
