"""Losses between waves: spectra at several resolutions for speech; phases and samples for tones; quiet for silence.

Unusual: speech is compared without phase and with windows of at least 512 samples, so that the codec need not keep the
phase of a voice; that leaves latents which a talker can predict. Single bins are compared above a floor, since their
zeros would give wild gradients; the energy of a frame without one, since a decoder whose sound has died away would
otherwise get no gradient to come back.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reference.audio.mel import mel_filters
from reference.audio.stft import stft
from reference.codec.codec import MAX_MAGNITUDE
from voicechat_mlx.config import PreprocessorConfig

BIN_FLOOR = 1e-4
"""A single bin below this counts as silence; with a lower floor, gradients at the ends of words outweigh all others."""
FLOOR = 1e-5
"""The same for the energy of a frame."""
FEATURE_FLOOR = 2e-5
"""The same for the codec's own small spectra, where an RMS of r gives about 2.4 r."""


class SpectralDistance(nn.Module):
    """(B, n), (B, n) → (B,): distances of magnitudes (log and relative), log-mel spectrum and energy."""

    filters: Tensor

    def __init__(self, sample_rate: int, sizes: tuple[int, ...] = (512, 1024, 2048), mels: int = 80) -> None:
        super().__init__()
        self.sizes = sizes
        for size in sizes:
            self.register_buffer(f"window_{size}", torch.hann_window(size))
        mel = PreprocessorConfig(sample_rate=sample_rate, n_fft=sizes[1], features=mels)
        self.register_buffer("filters", mel_filters(mel))

    def forward(self, true: Tensor, made: Tensor) -> Tensor:
        """Both (B, n) → (B,)."""
        distance = torch.zeros(len(true), device=true.device)
        for size in self.sizes:
            a, b = self.magnitude(true, size), self.magnitude(made, size)
            log = (torch.log(a + BIN_FLOOR) - torch.log(b + BIN_FLOOR)).abs().mean((1, 2))
            linear = (a - b).abs().sum((1, 2)) / (a + b).sum((1, 2)).clamp_min(1e-3)
            distance = distance + (log + linear) / len(self.sizes)
            if size == self.sizes[1]:
                mel_a, mel_b = self.filters @ a, self.filters @ b
                mel = (torch.log(mel_a + BIN_FLOOR) - torch.log(mel_b + BIN_FLOOR)).abs().mean((1, 2))
                log_energy = 0.5 * torch.log(b.square().mean(1) + 1e-16)
                energy = log_distance(a.square().mean(1).sqrt(), log_energy, FLOOR).mean(1)
                distance = distance + mel + energy
        return distance

    def magnitude(self, wave: Tensor, size: int) -> Tensor:
        """(B, n) → (B, bins, frames), a full-scale sine being about 1."""
        window = getattr(self, f"window_{size}")
        spectrum = torch.stft(wave, size, size // 4, window=window, return_complex=True)
        power = spectrum.real.square() + spectrum.imag.square()
        return torch.sqrt(power + 1e-14) * (4 / size)


def log_distance(true: Tensor, log_made: Tensor, floor: float) -> Tensor:
    """|log true - log made|; where the truth is below the floor, only what is made above it counts."""
    audible = (torch.log(true.clamp_min(floor)) - log_made).abs()
    return torch.where(true > floor, audible, (log_made - math.log(floor)).clamp_min(0))


def log_magnitude(features: Tensor) -> Tensor:
    """The decoder's features (B, T, 18) → log magnitudes (B, T, 9), before they become a spectrum."""
    top = math.log(MAX_MAGNITUDE)
    return top - F.softplus(top - features.chunk(2, dim=-1)[0])


def tone_distance(true: Tensor, made: Tensor) -> Tensor:
    """(B, n) twice → (B,): 0.1 per dB of relative error, and half the relative error."""
    relative = (made - true).square().mean(1) / true.square().mean(1).clamp_min(1e-8)
    return torch.log10(relative + 1e-5) + 0.5 * relative.clamp_max(10)


def feature_distance(true: Tensor, features: Tensor, n_fft: int, hop_length: int) -> Tensor:
    """Waves (B, n), the decoder's features (B, T, 18) → (B,): distance of their small spectra, phases included.

    Without it, tones stay silent: as long as the phase is not right, silence is nearer to a tone than any other tone.
    """
    spectrum = stft(true, n_fft, hop_length)
    magnitude, phase = spectrum.abs(), features.chunk(2, dim=-1)[1]
    weight = magnitude / magnitude.sum((1, 2), keepdim=True).clamp_min(1e-3)
    logs = log_distance(magnitude, log_magnitude(features), FEATURE_FLOOR)
    turned = 1 - torch.cos(phase - spectrum.angle())
    return (weight * (turned + 0.3 * logs)).sum((1, 2)) + 0.3 * logs.mean((1, 2))


def snr_db(true: Tensor, made: Tensor) -> Tensor:
    """(B, n) twice → (B,) signal-to-noise ratio."""
    return 10 * torch.log10(true.square().sum(1) / (made - true).square().sum(1).clamp_min(1e-20))
