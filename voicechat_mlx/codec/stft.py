"""The codec's 16-point STFT with hop 4, forward and inverse, as matrix products.

A 16-point transform is an 18 × 16 matrix, so no FFT is needed and the inverse runs as a stream: the last three
windowed frames are carried, and each hop of output is complete once four frames have covered it.
Unusual: each inverse frame is clipped to ±window before it is windowed again.
"""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np

from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.cache import Cache, Tail

MAX_MAGNITUDE = 100.0


class OverlapCache(Cache):
    """The windowed frames that still overlap what comes next; `real` is 0 for those before the start."""

    def __init__(self, batch: int, overlap: int, n_fft: int) -> None:
        self.frames = Tail(batch, overlap, n_fft, dtype=mx.float32)
        self.real = Tail(1, overlap, dtype=mx.float32)


class ShortStft:
    """Periodic Hann, `center=False`; `edge` = (n_fft - hop) / 2 samples belong to the padding at each end."""

    def __init__(self, n_fft: int, hop_length: int) -> None:
        self.n_fft, self.hop_length = n_fft, hop_length
        self.edge = (n_fft - hop_length) // 2
        n, k = np.arange(n_fft), np.arange(n_fft // 2 + 1)
        window = 0.5 - 0.5 * np.cos(2 * np.pi * n / n_fft)
        angles = 2 * np.pi * np.outer(k, n) / n_fft
        forward = np.concatenate([np.cos(angles), -np.sin(angles)]) * window
        weights = np.where((k == 0) | (k == n_fft // 2), 1.0, 2.0)[:, None] / n_fft
        inner = (k % (n_fft // 2) > 0)[:, None]
        inverse = np.concatenate([weights * np.cos(angles), np.where(inner, -weights * np.sin(angles), 0.0)])
        self._window = mx.array(window.astype(np.float32))
        self._forward = mx.array(forward.T.astype(np.float32))
        self._inverse = mx.array(inverse.astype(np.float32))
        self._energy = mx.array((window**2).reshape(-1, hop_length)[::-1].astype(np.float32))  # last quarter first

    def transform(self, wave: mx.array) -> mx.array:
        """(B, N) samples, N a multiple of the hop → (B, N / hop, 18): real parts, then imaginary parts."""
        padded = mx.pad(wave, [(0, 0), (self.edge, self.edge)])
        hops = padded.reshape(padded.shape[0], -1, self.hop_length)
        per_frame = self.n_fft // self.hop_length
        count = hops.shape[1] - per_frame + 1
        frames = mx.concatenate([hops[:, i : i + count] for i in range(per_frame)], axis=-1)
        return frames @ self._forward

    def make_cache(self, batch: int) -> OverlapCache:
        """Before the first frame."""
        return OverlapCache(batch, self.n_fft // self.hop_length - 1, self.n_fft)

    def inverse(self, features: mx.array, cache: OverlapCache) -> mx.array:
        """(B, T, 18) magnitude logits and phases → (B, hop·T): the stream's next samples, `edge` samples late.

        magnitude = 100 · exp(-softplus(ln 100 - m)) = 100 · σ(m - ln 100); the first and last bin are real, for which
        the inverse has zeros.
        """
        if cuda.available() and features.shape[0] == 1:
            held, real = cache.frames.steps, cache.real.steps
            samples, cache.frames.steps, cache.real.steps = cuda.inverse_stft(
                features, held, real, self._inverse, self._window, hop_length=self.hop_length, most=MAX_MAGNITUDE
            )
            return samples
        bins = self.n_fft // 2 + 1
        logits, phase = features[..., :bins], features[..., bins:]
        magnitude = MAX_MAGNITUDE * mx.sigmoid(logits - math.log(MAX_MAGNITUDE))
        spectrum = mx.concatenate([magnitude * mx.cos(phase), magnitude * mx.sin(phase)], axis=-1)
        frames = mx.clip(spectrum @ self._inverse, -self._window, self._window) * self._window
        return self._overlap(frames, mx.ones((1, features.shape[1])), cache)

    def flush(self, cache: OverlapCache) -> mx.array:
        """The samples still held back at the end of the stream: (B, edge)."""
        overlap = self.n_fft // self.hop_length - 1
        silence = mx.zeros((cache.frames.steps.shape[0], overlap, self.n_fft))
        return self._overlap(silence, mx.zeros((1, overlap)), cache)[:, : self.edge]

    def _overlap(self, frames: mx.array, real: mx.array, cache: OverlapCache) -> mx.array:
        """Hop j is Σ_i quarter i of frame j - i, divided by the window energy that fell on it."""
        batch, count, size = frames.shape
        per_frame, hop = size // self.hop_length, self.hop_length
        frames, flags = cache.frames.extend(frames), cache.real.extend(real)
        # Of each hop the frames that cover it, oldest first: its last quarter, the last but one of the next, …
        shape, strides = (batch, count, per_frame, hop), (frames.shape[1] * size, size, size - hop, 1)
        quarters = mx.as_strided(frames, shape, strides, offset=size - hop)
        heard = mx.as_strided(flags, (count, per_frame, 1), (1, 1, 0))
        energy = mx.maximum((heard * self._energy).sum(axis=1), 1e-11)
        return (quarters.sum(axis=2) / energy).reshape(batch, count * hop)
