"""What the decoder is refined on: latents as it will get them, with the sound that should come of them.

Unusual: speech is one long stream of sentences with silence codes between, cut at random; so a sentence ends in silence
codes, as it does when the talker speaks, and not in what the encoder would make of its end. Tones are rows of their
own, encoded from their first sample on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from reference.codec.codec import Codec
from reference.training.codec_sounds import TONES
from reference.training.data import Clip, chosen, read_clips
from reference.training.features import FULL_SCALE, random_gain
from reference.training.loop import LoopSettings
from reference.training.talker_rows import read_codes

REST = 16
"""Frames of silence after every twelfth sentence."""
ENCODED_TOGETHER = 32
MEASURED = 440.0
"""Hz of the tone that the figures are about."""


@dataclass(frozen=True, kw_only=True)
class DecoderSettings:
    """What a batch holds and how the losses are weighed."""

    loop: LoopSettings
    frames: int
    """Length of a row."""
    lead: int
    """Frames at the beginning of a row of speech that are decoded, but not judged: what came before them is cut off."""
    speech: int
    tones: int
    """Rows of each kind in a batch."""
    tone_pool: int
    """Rows of tones to draw from."""
    users: int
    """Clips of users in the stream, beside all of Aria's sentences."""
    ears: float
    """Weight of what the recogniser hears."""
    mean: float
    """How much of the running mean of the weights a step keeps."""
    judged: int
    """Sentences for the figures."""


class DecoderSounds(nn.Module):
    """Draws (latents (B, frames, latent), waves (B, n)) on the device."""

    latents: Tensor
    waves: Tensor
    tone_latents: Tensor
    tone_waves: Tensor

    @torch.no_grad()
    def __init__(self, codec: Codec, silence: Tensor, work: Path, settings: DecoderSettings, rate: int) -> None:
        super().__init__()
        self.settings = settings
        self.frame = frame = rate * 2 // 25
        books, device = codec.prvq, silence.device
        user_clips, user, aria_clips, aria = read_clips(work / "data")
        known, quiet = read_codes(work), books.decode(silence[None, None])[0]
        pieces: list[tuple[Tensor, Tensor]] = []
        for index in np.random.default_rng(0).permutation(len(aria_clips)):
            clip = aria_clips[index]
            codes = torch.from_numpy(known[clip.text].astype(np.int64)).to(device)
            pieces.append((books.decode(codes[None])[0], cut(clip, aria, len(codes), frame).to(device)))
            rest = REST if len(pieces) % 24 == 1 else int(index) % 4
            pieces.append((quiet.expand(rest, -1), torch.zeros(rest * frame, device=device)))
        heard = [clip for clip in user_clips if clip.kind == "question" and clip.split == "train"]
        for clip in chosen(heard, settings.users) if settings.users else []:
            wave = cut(clip, user, -(-clip.length // frame), frame).to(device)
            pieces.append((encoded(codec, wave[None])[0], wave))
        self.register_buffer("latents", torch.cat([latents for latents, _ in pieces]))
        self.register_buffer("waves", torch.cat([wave for _, wave in pieces]))
        tones = random_tones(settings.tone_pool, settings.frames * frame, rate, device)
        self.register_buffer("tone_waves", tones)
        self.register_buffer(
            "tone_latents", torch.cat([encoded(codec, part) for part in tones.split(ENCODED_TOGETHER)])
        )

    def draw(self) -> tuple[Tensor, Tensor]:
        """Rows of speech, then rows of tones."""
        settings, device = self.settings, self.latents.device
        first = torch.randint(len(self.latents) - settings.frames, (settings.speech, 1), device=device)
        speech = self.latents[first + torch.arange(settings.frames, device=device)]
        waves = self.waves[first * self.frame + torch.arange(settings.frames * self.frame, device=device)]
        row = torch.randint(len(self.tone_waves), (settings.tones,), device=device)
        return torch.cat([speech, self.tone_latents[row]]), torch.cat([waves, self.tone_waves[row]])


def cut(clip: Clip, samples: np.ndarray, frames: int, frame: int) -> Tensor:
    """A clip's samples, filled up to whole frames."""
    wave = torch.zeros(frames * frame)
    wave[: clip.length] = torch.from_numpy(samples[clip.offset : clip.offset + clip.length] / np.float32(FULL_SCALE))
    return wave


@torch.no_grad()
def encoded(codec: Codec, waves: Tensor) -> Tensor:
    """(B, n) → quantised latents (B, F, latent)."""
    return codec.prvq.decode(codec.encode(waves))


def random_tones(rows: int, samples: int, rate: int, device: torch.device) -> Tensor:
    """(rows, samples): known frequencies, half of them `MEASURED`, half loud; some begin or end within the row."""
    column = (rows, 1)
    index = torch.arange(rows, device=device)
    others = torch.tensor(TONES, device=device)[index // 2 % len(TONES)]
    frequency = torch.where(index % 2 == 0, MEASURED, others).unsqueeze(1)
    time = torch.arange(samples, device=device)
    phase = torch.where(torch.rand(column, device=device) < 0.3, 0.0, torch.rand(column, device=device))
    loud = 0.4 + 0.55 * torch.rand(column, device=device)
    gain = torch.where(torch.rand(column, device=device) < 0.5, loud, random_gain(column, 0.05, 0.95, device))
    tones = gain * torch.sin(2 * math.pi * (frequency * time / rate + phase))
    share = time / samples
    begin, end = (1.5 * torch.rand(2, *column, device=device) - 1).clamp_min(0).unbind(0)
    return tones * ((share >= begin) & (share < 1 - end))
