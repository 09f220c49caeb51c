"""Eight mel rows become one encoder frame: three causal stride-2 convolutions over time and frequency.

Each stage pads (2, 1) zeros on both axes, so output i reads inputs 2i - 2 … 2i: nothing later, and n inputs give
n // 2 + 1 outputs. The right-hand zero on the time axis matters only at the end of the stream (`last=True`).
Frequency goes 128 → 65 → 33 → 17; the width of `out` follows from that formula.
"""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.activations import relu
from voicechat_mlx.nn.cache import Cache
from voicechat_mlx.nn.fused import fused

FEW = 1 << 18
"""Products up to which a CPU spends more on starting a step for each of nine taps than on summing all at once."""


def subsampled(size: int) -> int:
    """Outputs of one stage for `size` inputs: (size + 2 + 1 - 3) // 2 + 1."""
    return size // 2 + 1


def encoder_frames(rows: int) -> int:
    """Encoder frames for that many mel rows: (rows - 2) // 8 + 2 from two rows on."""
    for _ in range(3):
        rows = subsampled(rows)
    return rows


class StageCache(Cache):
    """The rows that the next output of one stage still needs: two zero rows at the beginning."""

    def __init__(self, batch: int, bins: int, channels: int, dtype: mx.Dtype) -> None:
        self.rows = mx.zeros((batch, 2, bins, channels), dtype=dtype)


class SubsamplingCache(Cache):
    """One `StageCache` for each of the three stages."""

    def __init__(self, stages: list[StageCache]) -> None:
        self.stages = stages


class Conv2d(nn.Module):
    """A 2-D convolution with weight (out, kh, kw, in / groups): full 3×3 on one channel, depthwise 3×3, or 1×1."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, *, depthwise: bool = False) -> None:
        super().__init__()
        self.weight = mx.zeros((out_channels, kernel_size, kernel_size, 1 if depthwise else in_channels))
        self.bias = mx.zeros((out_channels,))
        self.prepare()

    def prepare(self) -> None:
        """The nine taps of a 3 × 3 kernel as rows, (9, out)."""
        self._taps = mx.contiguous(self.weight[..., 0].reshape(self.weight.shape[0], -1).T)
        self._at_once = mx.default_device().type == mx.DeviceType.cpu

    @property
    def rows(self) -> mx.array:
        """(9, out)."""
        return self._taps

    def taps(self, x: mx.array) -> mx.array:
        """Stride 2 over rows already padded: (B, T, K, C) → (B, (T-3)//2+1, (K-3)//2+1, out).

        With one input channel, or depthwise, each of the nine taps is a scaled copy of the input.
        """
        rows, bins = (x.shape[1] - 3) // 2 + 1, (x.shape[2] - 3) // 2 + 1
        if self._at_once and x.shape[0] * rows * bins * self._taps.size <= FEW:
            return (_patches(x, rows, bins) * self._taps.reshape(3, 3, -1)).sum(axis=(3, 4)) + self.bias
        y = self.bias
        for i in range(3):
            for j in range(3):
                y = y + x[:, i : i + 2 * rows - 1 : 2, j : j + 2 * bins - 1 : 2] * self._taps[3 * i + j]
        return y

    def pointwise(self, x: mx.array) -> mx.array:
        """Kernel 1: (…, in) → (…, out)."""
        return x @ self.weight[:, 0, 0].T + self.bias


def _patches(x: mx.array, rows: int, bins: int) -> mx.array:
    """(B, T, K, C) → (B, rows, bins, 3, 3, C): what outputs of stride 2 read, a view in which neighbours overlap."""
    batch, length, width, channels = x.shape
    row = width * channels
    strides = (length * row, 2 * row, 2 * channels, row, channels, 1)
    return mx.as_strided(x, (batch, rows, bins, 3, 3, channels), strides)


class CausalDwStridingSubsampling(nn.Module):
    """(B, T, 128) log-mel → (B, (T - 2) // 8 + 2, d_model) for T ≥ 2."""

    def __init__(self, features: int, channels: int, d_model: int) -> None:
        super().__init__()
        self.conv = [
            Conv2d(1, channels, 3),
            nn.ReLU(),
            Conv2d(channels, channels, 3, depthwise=True),
            Conv2d(channels, channels, 1),
            nn.ReLU(),
            Conv2d(channels, channels, 3, depthwise=True),
            Conv2d(channels, channels, 1),
        ]
        self._bins = [features]
        for _ in range(3):
            self._bins.append(subsampled(self._bins[-1]))
        self._channels = channels
        self.out = nn.Linear(channels * self._bins[-1], d_model)

    def make_cache(self, batch: int, dtype: mx.Dtype) -> SubsamplingCache:
        """Two zero rows before every stage."""
        widths = (1, self._channels, self._channels)
        return SubsamplingCache([StageCache(batch, b, c, dtype) for b, c in zip(self._bins, widths, strict=False)])

    def __call__(self, mel: mx.array, cache: SubsamplingCache | None = None, *, last: bool | None = None) -> mx.array:
        """(B, T, features) → (B, F, d_model): the frames that the rows so far complete.

        `last` ends the stream: the final zero row is added, which may complete one more frame.
        Without a cache the rows are the whole stream.
        """
        last = cache is None if last is None else last
        cache = cache or self.make_cache(mel.shape[0], mel.dtype)
        x = self._stage(0, mel[..., None], cache, last)
        x = self._stage(2, relu(x) if x.shape[1] else x, cache, last)
        x = self._stage(5, relu(self.conv[3].pointwise(x)) if x.shape[1] else x, cache, last)
        batch, frames, bins, channels = x.shape
        if frames == 0:  # compiled functions of nothing divide by zero on a GPU
            return mx.zeros((batch, 0, self.out.weight.shape[0]), dtype=x.dtype)
        x = relu(self.conv[6].pointwise(x))
        return fused(x.transpose(0, 1, 3, 2).reshape(batch, frames, channels * bins), self.out)

    def _stage(self, index: int, x: mx.array, cache: SubsamplingCache, last: bool) -> mx.array:
        stage, conv = cache.stages[index // 2], self.conv[index]
        if cuda.available() and x.shape[0] == 1 and x.shape[1] and stage.rows.shape[1] + x.shape[1] >= 3 and not last:
            y, stage.rows = cuda.subsample(stage.rows, x, conv.rows, conv.bias)
            return y
        rows = mx.concatenate([stage.rows, x], axis=1) if x.shape[1] else stage.rows
        if last:
            rows = mx.pad(rows, [(0, 0), (0, 1), (0, 0), (0, 0)])
        outputs = max(0, (rows.shape[1] - 3) // 2 + 1)
        stage.rows = rows[:, 2 * outputs :]
        if outputs == 0:
            return mx.zeros((x.shape[0], 0, subsampled(x.shape[2]), conv.weight.shape[0]), dtype=x.dtype)
        return conv.taps(mx.pad(rows, [(0, 0), (0, 0), (2, 1), (0, 0)]))
