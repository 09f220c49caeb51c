"""Clips on the device → waves, with gain and noise → log-mel rows, all in batches.

Unusual: a batch of sound is described by numbers (which clip starts at which sample, how loud) and put together on the
device, so that a training step needs nothing from the host and can be captured in a CUDA graph.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from reference.audio.mel import centred_hann, mel_filters, mirror_indices
from voicechat_mlx.config import PreprocessorConfig

FULL_SCALE = 32768.0


class SoundBank(nn.Module):
    """All clips, one after another, as 16-bit samples on the device."""

    samples: Tensor
    offsets: Tensor
    lengths: Tensor

    def __init__(self, samples: NDArray[np.int16], offsets: list[int], lengths: list[int]) -> None:
        super().__init__()
        self.register_buffer("samples", torch.from_numpy(np.array(samples)))
        self.register_buffer("offsets", torch.tensor(offsets, dtype=torch.int32))
        self.register_buffer("lengths", torch.tensor(lengths, dtype=torch.int32))

    def mix(self, clips: Tensor, starts: Tensor, gains: Tensor, n: int) -> Tensor:
        """clips, starts, gains (B, K) → waves (B, n): row b is the sum of its K clips; clip -1 is none."""
        time = torch.arange(n, device=self.samples.device, dtype=torch.int32)  # 32 bits: a third of the time
        wave = torch.zeros(len(clips), n, device=self.samples.device)
        for clip, start, gain in zip(clips.unbind(1), starts.unbind(1), gains.unbind(1), strict=True):
            known = clip.clamp_min(0)
            place = time - start.int().unsqueeze(1)
            inside = (place >= 0) & (place < self.lengths[known].unsqueeze(1)) & (clip >= 0).unsqueeze(1)
            index = torch.where(inside, self.offsets[known].unsqueeze(1) + place, 0)
            wave = wave + torch.where(inside, self.samples[index].float() * (gain / FULL_SCALE).unsqueeze(1), 0.0)
        return wave


class LogMel(nn.Module):
    """`reference.audio.mel.log_mel` for batches, convention `mlx`."""

    window: Tensor
    filters: Tensor

    def __init__(self, config: PreprocessorConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("window", centred_hann(config.window_length, config.n_fft).cpu())
        self.register_buffer("filters", mel_filters(config))

    def forward(self, waves: Tensor) -> Tensor:
        """(B, n) → (B, 1 + n // hop, features)."""
        config = self.config
        emphasised = torch.cat([waves[:, :1], waves[:, 1:] - config.preemph * waves[:, :-1]], dim=1)
        mirrored = emphasised[:, mirror_indices(waves.shape[1], config.n_fft // 2, waves.device)]
        spectrum = torch.stft(
            mirrored, config.n_fft, config.hop_length, window=self.window, center=False, return_complex=True
        )
        power = spectrum.real.square() + spectrum.imag.square()
        return torch.log(self.filters @ power + config.log_zero_guard_value).transpose(1, 2)


def add_noise(waves: Tensor, *, share: float, low: float, high: float) -> Tensor:
    """White noise, its RMS log-uniform in low … high, on that share of the rows (B, n)."""
    rows = (len(waves), 1)
    rms = random_gain(rows, low, high, waves.device)
    rms = torch.where(torch.rand(rows, device=waves.device) < share, rms, 0.0)
    return (waves + rms * torch.randn_like(waves)).clamp(-1, 1)


def random_gain(shape: tuple[int, ...], low: float, high: float, device: torch.device) -> Tensor:
    """Log-uniform in low … high."""
    return low * torch.exp(math.log(high / low) * torch.rand(shape, device=device))


def mask_bands(mel: Tensor, *, bands: int, widest: int) -> Tensor:
    """Set `bands` random runs of up to `widest` mel bins of each row (B, T, features) to the row's mean."""
    index = torch.arange(mel.shape[2], device=mel.device)
    mean = mel.mean(dim=(1, 2), keepdim=True)
    for _ in range(bands):
        width = torch.rand(len(mel), 1, device=mel.device) * widest
        first = torch.rand(len(mel), 1, device=mel.device) * (mel.shape[2] - width)
        hidden = (index >= first) & (index < first + width)
        mel = torch.where(hidden.unsqueeze(1), mean, mel)
    return mel
