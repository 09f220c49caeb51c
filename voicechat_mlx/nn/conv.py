"""Convolutions of this model, written as what they are: sums over taps, and matrix products.

Every convolution here is depthwise, has kernel 1, or has a kernel equal to its stride, so none needs a general
convolution routine. Parameters keep the checkpoint's names and MLX's layout (out, kernel…, in).
"""

from __future__ import annotations

from typing import cast

import mlx.core as mx
from mlx import nn

from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.activations import silu
from voicechat_mlx.nn.cache import Tail

FEW = 1 << 14
"""Numbers up to which a CPU spends more on starting a step for each tap than on multiplying all taps at once."""


class DepthwiseConv1d(nn.Module):
    """Causal depthwise convolution: y[t, c] = bias[c] + Σ_k weight[c, k] · x[t - (K - 1) + k, c].

    `with_silu` passes the result through SiLU.
    """

    def __init__(self, channels: int, kernel_size: int, *, bias: bool, with_silu: bool = False) -> None:
        super().__init__()
        self._with_silu = with_silu
        self.weight = mx.zeros((channels, kernel_size, 1))
        if bias:
            self.bias = mx.zeros((channels,))
        self.prepare()

    def prepare(self) -> None:
        """Lay the taps out as rows, (K, C), and as K single rows."""
        self._taps = mx.contiguous(self.weight[:, :, 0].T)
        self._rows = mx.split(self._taps, self._taps.shape[0])
        self._at_once = mx.default_device().type == mx.DeviceType.cpu

    @property
    def taps(self) -> mx.array:
        """(K, C)."""
        return self._taps

    def make_cache(self, batch: int, dtype: mx.Dtype) -> Tail:
        """The last K - 1 inputs."""
        kernel_size, channels = self._taps.shape
        return Tail(batch, kernel_size - 1, channels, dtype=dtype)

    def __call__(self, x: mx.array, cache: Tail | None = None, *, norm: nn.LayerNorm | None = None) -> mx.array:
        """(B, T, C) → (B, T, C), through the norm if there is one."""
        steps, kernel_size = x.shape[1], self._taps.shape[0]
        cache = cache or self.make_cache(x.shape[0], x.dtype)
        if cuda.available() and x.shape[0] == 1 and steps:
            scaling = (norm.weight, norm.bias, norm.eps) if norm else None
            weights = (self._taps, self.get("bias"))
            y, moved = cuda.depthwise(cache.steps, x, *weights, silu=self._with_silu, norm=scaling)
            cuda.keep(moved, cache, "steps")
            return cast(mx.array, y)
        window = cache.extend(cuda.settled(x))
        if steps == 1:
            y = (window * self._taps).sum(axis=1, keepdims=True)
        elif self._at_once and window.size <= FEW:
            y = (_sliding(window, kernel_size) * self._taps).sum(axis=2)
        else:
            y = window[:, :steps] * self._rows[0]
            for k in range(1, kernel_size):
                y = y + window[:, k : k + steps] * self._rows[k]
        y = y + self.bias if "bias" in self else y
        y = norm(y) if norm else y
        return silu(y) if self._with_silu else y


def _sliding(window: mx.array, size: int) -> mx.array:
    """(B, T + size - 1, C) → (B, T, size, C): a view in which neighbours overlap."""
    batch, length, channels = window.shape
    strides = (length * channels, channels, channels, 1)
    return mx.as_strided(window, (batch, length - size + 1, size, channels), strides)


class PointwiseConv1d(nn.Module):
    """A convolution with kernel 1: a linear layer whose weight is stored as (out, 1, in)."""

    def __init__(self, in_channels: int, out_channels: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = mx.zeros((out_channels, 1, in_channels))
        if bias:
            self.bias = mx.zeros((out_channels,))
        self.prepare()

    def prepare(self) -> None:
        """The weight as the product reads it, (in, out), a view."""
        self._matrix = self.weight[:, 0].T

    def __call__(self, x: mx.array) -> mx.array:
        """(…, in) → (…, out)."""
        y = x @ self._matrix
        return y + self.bias if "bias" in self else y


class PatchConv1d(nn.Module):
    """A convolution whose stride equals its kernel: each patch of K steps becomes one. No bias."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.weight = mx.zeros((out_channels, kernel_size, in_channels))

    def __call__(self, x: mx.array) -> mx.array:
        """(B, K·T, in) → (B, T, out)."""
        out_channels, kernel_size, channels = self.weight.shape
        patches = x.reshape(x.shape[0], x.shape[1] // kernel_size, kernel_size * channels)
        return patches @ self.weight.reshape(out_channels, -1).T


class PatchConvTranspose1d(nn.Module):
    """The transpose of `PatchConv1d`: one step becomes K. Weight (out, K, in), no bias."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.weight = mx.zeros((out_channels, kernel_size, in_channels))
        self.prepare()

    def prepare(self) -> None:
        """One matrix (in, K·out) whose product holds the K output steps side by side."""
        out_channels, kernel_size, channels = self.weight.shape
        self._matrix = mx.contiguous(self.weight.transpose(2, 1, 0).reshape(channels, kernel_size * out_channels))

    def __call__(self, x: mx.array) -> mx.array:
        """(B, T, in) → (B, K·T, out)."""
        out_channels, kernel_size, _ = self.weight.shape
        return (x @ self._matrix).reshape(x.shape[0], x.shape[1] * kernel_size, out_channels)
