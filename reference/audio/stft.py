"""The codec's small Fourier transform: 16-sample frames every 4 samples, and its inverse.

Unusual: no centring but 6 zeros at either end, so that N samples give exactly N / 4 frames; and the inverse clips every
frame to the window before overlap-add, which bounds the audio by 1.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def stft(wave: Tensor, n_fft: int, hop_length: int) -> Tensor:
    """(B, N) → (B, N // hop, n_fft // 2 + 1) complex."""
    edge = (n_fft - hop_length) // 2  # 6
    frames = F.pad(wave, (edge, edge)).unfold(-1, n_fft, hop_length)
    spectrum: Tensor = torch.fft.rfft(frames * hann(n_fft, wave))
    return spectrum


def inverse_stft(spectrum: Tensor, hop_length: int) -> Tensor:
    """(B, T, bins) complex → (B, T · hop)."""
    n_fft = 2 * (spectrum.shape[-1] - 1)
    edge = (n_fft - hop_length) // 2
    window = hann(n_fft, spectrum.real)
    frames = torch.fft.irfft(spectrum, n=n_fft)
    clipped = torch.minimum(torch.maximum(frames, -window), window)
    summed = overlap_add(clipped * window, hop_length)
    weight = overlap_add((window * window).expand_as(frames), hop_length)
    inside = slice(edge, summed.shape[-1] - edge)
    return summed[..., inside] / weight[..., inside]


def hann(n_fft: int, like: Tensor) -> Tensor:
    """(n_fft,) periodic Hann window."""
    return torch.hann_window(n_fft, periodic=True, device=like.device, dtype=like.dtype)


def overlap_add(frames: Tensor, hop_length: int) -> Tensor:
    """(B, T, n) → (B, (T - 1) · hop + n): frame t is added at sample t · hop."""
    _, count, length = frames.shape
    total = (count - 1) * hop_length + length
    summed = F.fold(frames.transpose(1, 2), output_size=(1, total), kernel_size=(1, length), stride=(1, hop_length))
    return summed[:, 0, 0]
