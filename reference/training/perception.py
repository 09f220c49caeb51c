"""Train the recogniser: log-mel → encoder frames → transcript.

Reads WORK/data. Writes WORK/perception: weights of the encoder and of the RNNT branch, figures.json and the loss curve.
The loss is the RNNT loss; early on the alignment that espeak-ng's word times suggest is scored as well, its weight
falling to nothing at two thirds of the way.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from reference.model import VoiceChat
from reference.perception.conformer import ConformerConvolution, FeedForward
from reference.perception.rel_attention import RelPosMultiHeadAttention
from reference.training.content import transcript
from reference.training.data import Clip, read_clips
from reference.training.devices import choose_device
from reference.training.features import LogMel, SoundBank, add_noise, mask_bands, random_gain
from reference.training.loop import Compute, LoopSettings, Phase, Trainer
from reference.training.model_files import (
    load_earlier,
    new_model,
    part_of,
    read_pieces,
    save_tensors,
)
from reference.training.options import settings_of, training_parser
from reference.training.recognise import error_rates, greedy_batch
from reference.training.rnnt_loss import lattice_scores, path_loss, rnnt_loss
from reference.training.vocabularies import Pieces

PREFIXES = ("perception.encoder.", "rnnt_decoder.", "rnnt_joint.")
KINDS = {"question": 0.62, "unknown": 0.08, "answer": 0.12, "aria": 0.18}
"""Shares of the training clips."""
FRAME = 1280
CLIPS_IN_A_ROW = 5


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    """Rows of one length."""

    rows: int
    """In a batch."""
    frames: int
    """Length of a row; its speech is up to 4 clips."""
    scripts: int
    """Different rows, each drawn many times with new gains, noise and masks."""
    most_pieces: int


@dataclass(frozen=True, kw_only=True)
class PerceptionSettings:
    """What batches hold, short rows first, and how the losses are weighed."""

    loop: LoopSettings
    short: RowSettings
    long: RowSettings
    short_until: float
    """Progress at which the long rows begin."""
    path_weight: float
    dropout: float


@dataclass(frozen=True)
class Scripts:
    """Rows of training: which clips start where, how loud, and what is said on which frame."""

    clips: NDArray[np.int64]
    """(N, K), -1 for none."""
    starts: NDArray[np.int64]
    gains: NDArray[np.float32]
    pieces: NDArray[np.int64]
    """(N, U)."""
    frames: NDArray[np.int64]
    lengths: NDArray[np.int64]


def write_scripts(clips: list[Clip], pieces: Pieces, settings: RowSettings, random: np.random.Generator) -> Scripts:
    """Random rows: clips one after another with gaps, now and then a noise over them or alone."""
    by_kind = {
        kind: [i for i, clip in enumerate(clips) if clip.kind == kind and clip.split == "train"]
        for kind in (*KINDS, "noise")
    }
    kinds = [kind for kind in KINDS if by_kind[kind]]
    shares = np.cumsum([KINDS[kind] for kind in kinds]) / sum(KINDS[kind] for kind in kinds)
    spelled = [pieces.encode_words(transcript(clip.text)) for clip in clips]
    count, most, samples = settings.scripts, settings.most_pieces, (settings.frames - 1) * FRAME
    table = Scripts(
        np.full((count, CLIPS_IN_A_ROW), -1),
        np.zeros((count, CLIPS_IN_A_ROW), np.int64),
        np.ones((count, CLIPS_IN_A_ROW), np.float32),
        np.zeros((count, most), np.int64),
        np.zeros((count, most), np.int64),
        np.zeros(count, np.int64),
    )
    for row in range(count):
        if random.random() < 0.15:
            table.clips[row, -1] = by_kind["noise"][random.integers(len(by_kind["noise"]))]
            table.starts[row, -1] = random.integers(0, samples // 2)
            table.gains[row, -1] = 0.02 * 15 ** random.random()
        if random.random() < 0.04:
            continue
        time, said, loudness = int(random.integers(0, 16000)), 0, 0.5 * 4 ** random.random()
        for place in range(CLIPS_IN_A_ROW - 1):
            listed = by_kind[kinds[min(int(np.searchsorted(shares, random.random())), len(kinds) - 1)]]
            index = listed[random.integers(len(listed))]
            new = sum(map(len, spelled[index]))
            if time + clips[index].length + FRAME > samples or said + new > most:
                break
            table.clips[row, place], table.starts[row, place] = index, time
            table.gains[row, place] = loudness * 1.5 ** random.uniform(-1, 1)
            table.pieces[row, said : said + new] = [piece for word in spelled[index] for piece in word]
            table.frames[row, said : said + new] = emission_frames(clips[index], spelled[index], time)
            said += new
            time += clips[index].length + int(random.integers(1600, 16000))
        table.lengths[row] = said
    return table


def emission_frames(clip: Clip, words: list[list[int]], start: int) -> list[int]:
    """The frame after the one in which each piece, its word cut evenly, ends."""
    ends = [*clip.starts[1:], clip.length]
    frames = []
    for begin, end, ids in zip(clip.starts, ends, words, strict=True):
        frames += [(start + begin + (end - begin) * (k + 1) // len(ids)) // FRAME + 1 for k in range(len(ids))]
    return frames


class Listening(nn.Module):
    """Draws rows, makes them loud, noisy and patchy, and computes the loss. `sounds` is not part of the state."""

    def __init__(self, model: VoiceChat, sounds: SoundBank, settings: PerceptionSettings) -> None:
        super().__init__()
        self.encoder = model.perception.encoder
        self.rnnt_decoder, self.rnnt_joint = model.rnnt_decoder, model.rnnt_joint
        self.blank, self.settings = model.config.rnnt_blank_id, settings
        self._outside = (sounds, LogMel(model.config.audio_config.preprocessor).to(sounds.samples.device))

    def loss_on(self, scripts: Scripts, settings: RowSettings, progress: Tensor) -> Compute:
        """A function that draws a batch of these rows → the loss and its parts."""
        tables = [torch.from_numpy(table).to(progress.device) for table in vars(scripts).values()]

        def compute() -> dict[str, Tensor]:
            chosen = torch.randint(settings.scripts, (settings.rows,), device=progress.device)
            clips, starts, gains, pieces, frames, lengths = (table[chosen] for table in tables)
            blank, emit = self.scores(clips, starts, gains, pieces, settings.frames)
            transducer = rnnt_loss(blank, emit, lengths).sum() / lengths.sum().clamp_min(1)
            path = path_loss(blank, emit, lengths, frames.clamp_max(settings.frames - 1)).mean()
            weight = self.settings.path_weight * (1 - 1.5 * progress).clamp_min(0)
            return {"loss": transducer + weight * path, "transducer": transducer, "path": path}

        return compute

    def scores(
        self, clips: Tensor, starts: Tensor, gains: Tensor, pieces: Tensor, frames: int
    ) -> tuple[Tensor, Tensor]:
        """Clips, starts and gains (B, K), pieces (B, U) → what `lattice_scores` gives on so many frames."""
        sounds, log_mel = self._outside
        loud = gains * random_gain((len(gains), 1), 0.5, 2.0, gains.device)
        waves = sounds.mix(clips, starts, loud, (frames - 1) * FRAME)
        mel = mask_bands(log_mel(add_noise(waves, share=0.7, low=5e-5, high=1.2e-2)), bands=2, widest=16)
        encoded, _ = self.encoder(mel, torch.full((len(mel),), mel.shape[1], device=mel.device))
        predicted = self.rnnt_decoder.prediction(pieces)
        logits = self.rnnt_joint(encoded.unsqueeze(2), predicted.unsqueeze(1))
        return lattice_scores(logits, pieces, self.blank)


def add_dropout(root: nn.Module, rate: float) -> None:
    """Dropout on what each part of a conformer block adds, while in training mode."""

    def drop(module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        return F.dropout(output, rate, module.training)

    for module in root.modules():
        if isinstance(module, FeedForward | RelPosMultiHeadAttention | ConformerConvolution):
            module.register_forward_hook(drop)


@torch.no_grad()
def transcribe(model: VoiceChat, sounds: SoundBank, clips: list[int], pieces: Pieces, noise: float) -> list[str]:
    """Clips of the bank, each after 0.3 s and before 0.6 s of the noise, → transcripts."""
    log_mel = LogMel(model.config.audio_config.preprocessor).to(sounds.samples.device)
    found: list[str] = []
    for first in range(0, len(clips), 256):
        index = torch.tensor(clips[first : first + 256], device=sounds.samples.device)
        longest = int(sounds.lengths[index].max())
        samples = -(-(longest + 14400) // FRAME) * FRAME
        starts = torch.full((len(index), 1), 4800, device=index.device)
        waves = sounds.mix(index.unsqueeze(1), starts, torch.ones(starts.shape, device=index.device), samples)
        found += transcribe_waves(model, waves + noise * torch.randn_like(waves), pieces, log_mel)
    return found


def transcribe_waves(model: VoiceChat, waves: Tensor, pieces: Pieces, log_mel: LogMel) -> list[str]:
    """(B, n) at 16 kHz → transcripts."""
    mel = log_mel(waves)
    encoded, _ = model.perception.encoder(mel, torch.full((len(mel),), mel.shape[1], device=mel.device))
    return [pieces.decode(ids) for ids in greedy_batch(model, encoded)]


def measure(model: VoiceChat, sounds: SoundBank, clips: list[Clip], pieces: Pieces) -> dict[str, dict[str, float]]:
    """Word error on clips that were not trained on, and on Aria's."""
    questions = [i for i, clip in enumerate(clips) if clip.kind == "question" and clip.split == "test"]
    trained = {clip.text for clip in clips if clip.split == "train"}
    groups = {
        "held-out voices": (questions, 1e-4),
        "held-out voices, noise 0.01": (questions, 1e-2),
        "new combinations": ([i for i in questions if clips[i].text not in trained], 1e-4),
        "Aria": ([i for i, clip in enumerate(clips) if clip.kind == "aria"], 1e-4),
    }
    figures = {}
    for name, (index, noise) in groups.items():
        if index:
            heard = transcribe(model, sounds, index, pieces, noise)
            figures[name] = error_rates([transcript(clips[i].text) for i in index], heard) | {"clips": len(index)}
    return figures


def train(arguments: argparse.Namespace) -> None:
    """The whole step."""
    folder: Path = arguments.work / "perception"
    if (folder / "figures.json").is_file() and not arguments.again:
        print(f"perception: {folder} is complete")
        return
    device = choose_device(arguments)
    settings = settings_of(arguments, "perception", PerceptionSettings)
    model = new_model(arguments, device)
    clips, samples, _, _ = read_clips(arguments.work / "data")
    pieces = read_pieces(arguments.work / "data")
    sounds = SoundBank(samples, [clip.offset for clip in clips], [clip.length for clip in clips]).to(device)
    random = np.random.default_rng(arguments.seed)
    load_earlier(model, folder)

    def save() -> None:
        save_tensors(folder, part_of(model, PREFIXES))

    listening = Listening(model, sounds, settings)
    add_dropout(model.perception.encoder, settings.dropout)
    listening.train()  # not compiled: a CUDA graph alone makes it fast, and compiled it could not be captured
    trainer = Trainer("perception", folder, listening, listening.parameters(), settings.loop, arguments, save)
    short, long = (
        listening.loss_on(write_scripts(clips, pieces, rows, random), rows, trainer.progress)
        for rows in (settings.short, settings.long)
    )
    trainer.run([Phase(until=settings.short_until, computes=(short,)), Phase(until=1.0, computes=(long,))])
    model.eval()
    save()
    figures = measure(model, sounds, clips, pieces)
    (folder / "figures.json").write_text(json.dumps(figures, indent=1))
    print(f"perception: {figures}", flush=True)


if __name__ == "__main__":
    train(training_parser("perception", __doc__).parse_args())
