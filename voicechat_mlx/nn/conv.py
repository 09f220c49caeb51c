"""Convolutions of this model, written as what they are: sums over taps, and matrix products.

Every convolution here is depthwise, has kernel 1, or has a kernel equal to its stride, so none needs a general
convolution routine. Parameters keep the checkpoint's names and MLX's layout (out, kernel…, in).
"""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.activations import glu, silu
from voicechat_mlx.nn.cache import Tail


class DepthwiseConv1d(nn.Module):
    """Causal depthwise convolution: y[t, c] = bias[c] + Σ_k weight[c, k] · x[t - (K - 1) + k, c].

    `gated` takes twice the channels and convolves their GLU; `with_silu` passes the result through SiLU.
    """

    def __init__(
        self, channels: int, kernel_size: int, *, bias: bool, gated: bool = False, with_silu: bool = False
    ) -> None:
        super().__init__()
        self._gated, self._with_silu = gated, with_silu
        self.weight = mx.zeros((channels, kernel_size, 1))
        if bias:
            self.bias = mx.zeros((channels,))
        self.prepare()

    def prepare(self) -> None:
        """Lay the taps out as rows, (K, C), and as K single rows."""
        self._taps = mx.contiguous(self.weight[:, :, 0].T)
        self._rows = mx.split(self._taps, self._taps.shape[0])

    def make_cache(self, batch: int, dtype: mx.Dtype) -> Tail:
        """The last K - 1 inputs."""
        kernel_size, channels = self._taps.shape
        return Tail(batch, kernel_size - 1, channels, dtype=dtype)

    def __call__(self, x: mx.array, cache: Tail | None = None) -> mx.array:
        """(B, T, C) → (B, T, C)."""
        steps, kernel_size = x.shape[1], self._taps.shape[0]
        cache = cache or self.make_cache(x.shape[0], x.dtype)
        if cuda.available() and x.shape[:2] == (1, 1):
            options = {"gated": self._gated, "silu": self._with_silu}
            y, cache.steps = cuda.conv_step(cache.steps, x, self._taps, self.get("bias"), **options)
            return y
        window = cache.extend(glu(x) if self._gated else x)
        if steps == 1:
            y = (window * self._taps).sum(axis=1, keepdims=True)
        else:
            y = window[:, :steps] * self._rows[0]
            for k in range(1, kernel_size):
                y = y + window[:, k : k + steps] * self._rows[k]
        y = y + self.bias if "bias" in self else y
        return silu(y) if self._with_silu else y


class PointwiseConv1d(nn.Module):
    """A convolution with kernel 1: a linear layer whose weight is stored as (out, 1, in)."""

    def __init__(self, in_channels: int, out_channels: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = mx.zeros((out_channels, 1, in_channels))
        if bias:
            self.bias = mx.zeros((out_channels,))

    def __call__(self, x: mx.array) -> mx.array:
        """(…, in) → (…, out)."""
        weight = self.weight[:, 0].T
        return x @ weight + self.bias if "bias" in self else x @ weight


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
