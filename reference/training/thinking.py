"""The language model over whole rows: inputs from labels, both heads' logits, the same with 4-bit weights, free
running.

Unusual: greedy decoding equals the labels exactly when every position, given the labels before it, chooses its
label. So one pass over all positions finds most rows right, and only the others have to run freely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from reference.model import VoiceChat
from reference.training.features import LogMel, SoundBank, add_noise
from reference.training.timelines import CLIPS_IN_A_ROW, FRAME_IN, Row
from reference.training.vocabularies import PAD

GROUP, LEVELS = 64, 15
CHUNK = 256
"""Rows at a time."""


@dataclass
class Rows:
    """Conversations on the device. N rows of T positions; F ≥ T encoder frames of D values."""

    encoded: Tensor
    """(N, F, D) float16, counted from the first audio frame."""
    prompts: Tensor
    """(N, P) ids, PAD after the end."""
    prompt_lengths: Tensor
    text: Tensor
    function: Tensor
    forced: Tensor

    def take(self, index: Tensor) -> Rows:
        """Some of the rows."""
        return Rows(*(tensor[index] for tensor in vars(self).values()))

    def __len__(self) -> int:
        return len(self.text)


@torch.no_grad()
def hear(
    model: VoiceChat, sounds: SoundBank, rows: Sequence[Row], noise: tuple[float, float, float], chunk: int = 64
) -> Rows:
    """Rows → their sound through the frozen encoder. `noise`: share of rows, lowest and highest RMS."""
    device, frames = sounds.samples.device, len(rows[0].text)
    log_mel = LogMel(model.config.audio_config.preprocessor).to(device)
    clips, starts = (np.full((len(rows), CLIPS_IN_A_ROW), value, np.int64) for value in (-1, 0))
    gains = np.ones((len(rows), CLIPS_IN_A_ROW), np.float32)
    prompts = np.full((len(rows), max(1, *(len(row.prompt) for row in rows))), PAD, np.int64)
    for index, row in enumerate(rows):
        for place, (clip, start, gain) in enumerate(row.clips[:CLIPS_IN_A_ROW]):
            clips[index, place], starts[index, place], gains[index, place] = clip, start, gain
        prompts[index, : len(row.prompt)] = row.prompt
    encoded = []
    for first in range(0, len(rows), chunk):
        which, when, loud = (
            torch.from_numpy(table[first : first + chunk]).to(device) for table in (clips, starts, gains)
        )
        waves = sounds.mix(which, when, loud, (frames - 1) * FRAME_IN)
        mel = log_mel(add_noise(waves, share=noise[0], low=noise[1], high=noise[2]))
        lengths = torch.full((len(mel),), mel.shape[1], device=device)
        encoded.append(model.perception.encoder(mel, lengths)[0].half())
    return Rows(
        torch.cat(encoded),
        torch.from_numpy(prompts).to(device),
        torch.tensor([len(row.prompt) for row in rows], device=device),
        *(
            torch.from_numpy(np.stack(tables)).to(device)
            for tables in zip(*((row.text, row.function, row.forced) for row in rows), strict=True)
        ),
    )


class Thinking(nn.Module):
    """The modules of the model that this step trains, and their forward pass over rows."""

    def __init__(self, model: VoiceChat) -> None:
        super().__init__()
        self.embed_tokens, self.llm = model.embed_tokens, model.llm
        self.lm_head, self.function_head = model.lm_head, model.function_head
        self.proj = model.perception.proj
        self._weight = model.config.function_channel_weight

    def forward(self, rows: Rows, text: Tensor, function: Tensor) -> tuple[Tensor, Tensor]:
        """Labels or what was said so far (B, t), t ≤ T → logits of both heads (B, t, V)."""
        steps = text.shape[1]
        position = torch.arange(steps, device=text.device)
        frame = position - rows.prompt_lengths.unsqueeze(1)  # (B, t)
        index = frame.clamp_min(0).unsqueeze(2).expand(-1, -1, rows.encoded.shape[2])
        audio = self.proj(rows.encoded.gather(1, index).float())
        prompt = self.embed_tokens(rows.prompts[:, position.clamp_max(rows.prompts.shape[1] - 1)])
        channel = torch.where((frame < 0).unsqueeze(2), prompt, audio)
        fused = self.embed_tokens(delayed(text)) + channel + self._weight * self.embed_tokens(delayed(function))
        hidden = self.llm(fused)
        return self.lm_head(hidden), self.function_head(hidden)


def delayed(ids: Tensor) -> Tensor:
    """(B, T) → one position later, PAD first."""
    return nn.functional.pad(ids[:, :-1].long(), (1, 0), value=PAD)


def in_four_bits(thinking: Thinking) -> dict[str, Tensor]:
    """The weights that a converter packs, rounded to 4 bits in groups of 64; gradients pass straight through."""
    packed = {}
    for name, weight in thinking.named_parameters():
        if weight.ndim == 2 and not name.startswith("proj."):
            groups = weight.unflatten(1, (-1, min(GROUP, weight.shape[1])))
            low, high = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
            scale = ((high - low) / LEVELS).clamp_min(1e-8)
            rounded = (torch.round((groups - low) / scale) * scale + low).flatten(1)
            packed[name] = weight + (rounded - weight).detach()
    return packed


def with_weights(thinking: Thinking, weights: dict[str, Tensor], rows: Rows) -> tuple[Tensor, Tensor]:
    """The forward pass on other weights, labels as the past."""
    logits: tuple[Tensor, Tensor] = functional_call(thinking, weights, (rows, rows.text, rows.function))
    return logits


@torch.no_grad()
def run_freely(thinking: Thinking, rows: Rows, weights: dict[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """What the model says on its own: text and function ids (N, T); forced positions are written from the labels."""
    weights = weights or {}
    audible = torch.arange(rows.text.shape[1], device=rows.text.device) >= rows.prompt_lengths.unsqueeze(1)
    told = ~audible | rows.forced
    text, function = rows.text.long(), rows.function.long()
    wrong = torch.zeros_like(told)
    for index in torch.arange(len(rows), device=text.device).split(CHUNK):
        part = rows.take(index)
        now, call = functional_call(thinking, weights, (part, part.text, part.function))
        wrong[index] = ((now.argmax(2) != text[index]) & audible[index]) | (
            (call.argmax(2) != function[index]) & ~told[index]
        )
    left = wrong.any(1).nonzero().squeeze(1)
    if len(left) == 0:
        return text, function
    rest, audible, told = rows.take(left), audible[left], told[left]
    said, called = text[left], function[left]
    for t in range(int(wrong[left].int().argmax(1).min()), text.shape[1]):
        for index in torch.arange(len(left), device=text.device).split(CHUNK):
            part = rest.take(index)
            now, call = functional_call(thinking, weights, (part, said[index, : t + 1], called[index, : t + 1]))
            said[index, t] = torch.where(audible[index, t], now[:, t].argmax(1), PAD)
            called[index, t] = torch.where(told[index, t], called[index, t], call[:, t].argmax(1))
    text[left], function[left] = said, called
    return text, function
