"""How a sound is heard: the frozen recogniser's own activations, with a way to them that gradients can take.

Unusual: 22.05 kHz become 16 kHz by one strided convolution, since 441 samples of the one are 320 of the other.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reference.model import VoiceChat
from reference.training.features import LogMel

ZEROS = 16
"""Zero crossings of the resampler's kernel on either side."""
NOISE = 3e-4
"""RMS of the noise that both sounds get: what it covers need not agree."""


class Resampler(nn.Module):
    """Windowed sinc from one rate to a lower one; `step_in` samples become `step_out`."""

    kernels: Tensor

    def __init__(self, rate_in: int, rate_out: int) -> None:
        super().__init__()
        common = math.gcd(rate_in, rate_out)
        self.step_in, self.step_out = rate_in // common, rate_out // common
        cutoff = 0.95 * rate_out / rate_in
        self.edge = math.ceil(ZEROS / cutoff)
        place = torch.arange(-self.edge, self.step_in + self.edge).double()
        middle = torch.arange(self.step_out).double().unsqueeze(1) * self.step_in / self.step_out
        distance = place - middle
        window = torch.cos(distance * (math.pi / 2) / (self.edge + 1)).square() * (distance.abs() <= self.edge)
        kernels = cutoff * torch.sinc(cutoff * distance) * window
        self.register_buffer("kernels", kernels.unsqueeze(1).float())

    def forward(self, waves: Tensor) -> Tensor:
        """(B, n), n a multiple of `step_in` → (B, n · rate_out / rate_in)."""
        padded = F.pad(waves, (self.edge, self.edge)).unsqueeze(1)
        return F.conv1d(padded, self.kernels, stride=self.step_in).transpose(1, 2).flatten(1)


class Ears(nn.Module):
    """(B, n), (B, n) → (B,): how differently two sounds are heard, mean over layers; 0 when they are the same."""

    def __init__(self, model: VoiceChat) -> None:
        super().__init__()
        config = model.config
        self.encoder = model.perception.encoder.requires_grad_(False)
        self.log_mel = LogMel(config.audio_config.preprocessor)
        self.resample = Resampler(config.output_sample_rate, config.input_sample_rate)
        self._heard: list[Tensor] = []
        for layer in self.encoder.layers:
            layer.register_forward_hook(self._keep)

    def _keep(self, _module: nn.Module, _inputs: Any, output: Tensor) -> None:
        self._heard.append(output)

    def listen(self, waves: Tensor) -> list[Tensor]:
        """(B, n) → what each layer makes of it, (B, F, D)."""
        self._heard = []
        mel = self.log_mel(waves)
        self.encoder(mel, torch.full((len(mel),), mel.shape[1], device=mel.device))
        heard, self._heard = self._heard, []
        return heard

    def forward(self, true: Tensor, made: Tensor) -> Tensor:
        """Both (B, n) at the output rate → (B,)."""
        true, made = self.resample(true), self.resample(made)
        noise = NOISE * torch.randn_like(true)
        with torch.no_grad():
            wanted = self.listen(true + noise)
        distance = torch.zeros(len(true), device=true.device)
        for a, b in zip(wanted, self.listen(made + noise), strict=True):
            spread = (a - a.mean((0, 1))).square().mean().clamp_min(1e-6)
            distance = distance + (a - b).square().mean((1, 2)) / spread / len(wanted)
        return distance
