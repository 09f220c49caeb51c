"""The sounds that the codec learns from, drawn on the device: speech, sweeps, noise, tones, silence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from reference.training.data import read_clips
from reference.training.features import FULL_SCALE, random_gain
from reference.training.loop import LoopSettings

TONES = (220.0, 330.0, 440.0, 550.0, 660.0, 880.0, 1000.0, 1320.0)
"""Hz. Tones keep their phase through the codec; other sounds need not."""


@dataclass(frozen=True, kw_only=True)
class CodecSettings:
    """What a batch holds and how the losses are weighed."""

    loop: LoopSettings
    frames: int
    """Length of a row."""
    aria: int
    user: int
    sweeps: int
    noise: int
    tones: int
    silence: int
    """Rows of each kind in a batch."""
    plain: float
    """Share of the steps without quantisation."""
    shifted: int
    """Rows of Aria that are also encoded a few samples later, and must give the same latents."""
    shift_weight: float
    size_weight: float
    """Weight of the latents' mean square."""
    commitment: float
    partial: float
    """Share of rows that are decoded from their first few books only."""
    means_rounds: int
    means_batches: int


class Sounds(nn.Module):
    """Draws batches of waves on the device: rows of speech, sweeps and noise first, then tones, then silence."""

    aria: Tensor
    user: Tensor
    tones: Tensor

    def __init__(self, work: Path, settings: CodecSettings, samples_per_frame: int, rate: int) -> None:
        super().__init__()
        _, user, _, aria = read_clips(work / "data")
        self.settings, self.rate = settings, rate
        self.length = settings.frames * samples_per_frame
        self.register_buffer("aria", torch.from_numpy(np.array(aria)))
        self.register_buffer("user", torch.from_numpy(np.array(user[: 60 * 60 * 16000])))
        self.register_buffer("tones", torch.tensor(TONES))

    @property
    def with_phase(self) -> int:
        """Rows at the end that are compared sample by sample."""
        return self.settings.tones + self.settings.silence

    def draw(self, extra: int = 0) -> Tensor:
        """(B, length + extra)."""
        s, length = self.settings, self.length + extra
        speech = torch.cat([self._cut(self.aria, s.aria, length), self._cut(self.user, s.user, length)])
        speech = self._ends(speech) * random_gain((len(speech), 1), 0.5, 2.0, speech.device)
        time = torch.arange(length, device=speech.device) / self.rate
        low, high = (50 + 5000 * torch.rand(2, s.sweeps, 1, device=speech.device)).unbind(0)
        sweeps = torch.sin(2 * math.pi * (low * time + (high - low) * time.square() / (2 * time[-1])))
        noise = torch.randn(s.noise, length, device=speech.device) * 0.3
        tones = torch.sin(
            2 * math.pi * (self._tone_frequencies() * time + torch.rand(s.tones, 1, device=speech.device))
        )
        others = torch.cat([sweeps, noise, tones])
        gain = random_gain((len(others), 1), 0.03, 0.95, speech.device)
        silence = torch.zeros(s.silence, length, device=speech.device)
        return torch.cat([speech, self._ends(others) * gain, silence])

    def _tone_frequencies(self) -> Tensor:
        return self.tones[torch.randint(len(TONES), (self.settings.tones, 1), device=self.tones.device)]

    def _cut(self, samples: Tensor, rows: int, length: int) -> Tensor:
        first = torch.randint(len(samples) - length, (rows, 1), device=samples.device)
        return samples[first + torch.arange(length, device=samples.device)].float() / FULL_SCALE

    def _ends(self, waves: Tensor) -> Tensor:
        """Half of the rows begin in silence, half end in it."""
        place = torch.arange(waves.shape[1], device=waves.device) / waves.shape[1]
        begin, end = (torch.rand(2, len(waves), 1, device=waves.device) * 2 - 1).clamp_min(0).unbind(0)
        return waves * ((place >= begin) & (place < 1 - end))
