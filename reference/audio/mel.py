"""Log-mel frontend: samples at 16 kHz → one row of 128 values per 10 ms.

Unusual: pre-emphasis comes before the padding, the Hann window is the symmetric one (400 points centred in 512), and
nothing is normalised. The two conventions differ only in the padding and in whether the last row counts.
"""

from __future__ import annotations

import librosa
import torch
from torch import Tensor
from torch.nn import functional as F

from voicechat_mlx.config import PreprocessorConfig
from voicechat_mlx.conventions import Conventions


def log_mel(samples: Tensor, config: PreprocessorConfig, conventions: Conventions) -> tuple[Tensor, int]:
    """(n,) → ((1, T, features), valid rows) with T = 1 + n // hop; invalid rows are 0.0."""
    emphasised = torch.cat([samples[:1], samples[1:] - config.preemph * samples[:-1]])
    spectrum = torch.stft(
        pad(emphasised, config.n_fft // 2, conventions.stft_padding),
        n_fft=config.n_fft,
        hop_length=config.hop_length,
        window=centred_hann(config.window_length, config.n_fft).to(samples.device),
        center=False,
        return_complex=True,
    )  # (bins, T)
    power = spectrum.real**2 + spectrum.imag**2
    mel = mel_filters(config).to(samples.device) @ power
    rows = torch.log(mel + config.log_zero_guard_value).T.unsqueeze(0)
    valid = rows.shape[1] if conventions.keeps_last_mel_frame else len(samples) // config.hop_length
    is_valid = torch.arange(rows.shape[1], device=rows.device) < valid
    return torch.where(is_valid.reshape(1, -1, 1), rows, 0.0), valid


def mel_filters(config: PreprocessorConfig) -> Tensor:
    """(features, n_fft // 2 + 1) triangles, Slaney scale, each of unit area."""
    filters = librosa.filters.mel(
        sr=config.sample_rate, n_fft=config.n_fft, n_mels=config.features, htk=False, norm="slaney"
    )
    return torch.from_numpy(filters)


def centred_hann(window_length: int, n_fft: int) -> Tensor:
    """(n_fft,) symmetric Hann window between equal runs of zeros: 56 + 400 + 56 = 512."""
    zeros = n_fft - window_length
    return F.pad(torch.hann_window(window_length, periodic=False), (zeros // 2, zeros - zeros // 2))


def pad(samples: Tensor, count: int, mode: str) -> Tensor:
    """(n,) → (n + 2 · count,), continued by zeros ("constant") or mirrored without repeating the ends ("reflect")."""
    if mode == "constant":
        return F.pad(samples, (count, count))
    return samples[mirror_indices(len(samples), count, samples.device)]


def mirror_indices(n: int, count: int, device: torch.device) -> Tensor:
    """Which sample stands at each of the positions -count … n + count - 1: a mirror at either end, as often as needed.

    Mirroring a signal of n samples repeats it every 2 (n - 1): 0 1 2 1 0 1 2 … for n = 3. One sample repeats itself.
    """
    positions = torch.arange(-count, n + count, device=device)
    if n == 1:
        return torch.zeros_like(positions)
    phase = positions % (2 * (n - 1))
    return torch.minimum(phase, 2 * (n - 1) - phase)
