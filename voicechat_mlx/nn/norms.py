"""Normalisation: MLX's norms in fewer steps on a CPU, and RMS norms whose weight is an offset or that look at groups.

A CPU spends more on starting a step than on a row of numbers, and MLX's own norms are 11 and 18 steps there. With
√n · weight and n · eps computed beforehand, x / √(Σx² + n · eps) · (√n · weight) is the RMS norm in 9.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import mlx.core as mx
from mlx import nn

from voicechat_mlx.nn import cuda


class RmsScaling(NamedTuple):
    """x / rms(x) · weight as a function with its constants."""

    weight: mx.array
    long_weight: mx.array
    """√n · weight."""
    floor: mx.array
    """n · eps, (1,)."""
    eps: float
    on_cpu: bool

    @classmethod
    def of(cls, weight: mx.array, eps: float) -> RmsScaling:
        """For the current device."""
        width = weight.shape[-1]
        on_cpu = mx.default_device().type == mx.DeviceType.cpu
        return cls(weight, math.sqrt(width) * weight, mx.array([width * eps]), eps, on_cpu)

    def __call__(self, x: mx.array) -> mx.array:
        """(…, width) → the same shape. The weight may have more axes than one: one row for each head, say."""
        if self.in_few_steps(x):
            return x * mx.rsqrt(mx.square(x).sum(axis=-1, keepdims=True) + self.floor) * self.long_weight
        if self.weight.ndim == 1:
            return mx.fast.rms_norm(x, self.weight, self.eps)
        return mx.fast.rms_norm(x, None, self.eps) * self.weight

    def in_few_steps(self, x: mx.array) -> bool:
        """Whether this is about x at all: float32 on a CPU."""
        return self.on_cpu and x.dtype == mx.float32


class _Scaled(nn.Module):
    """What one of MLX's norms needs to go in few steps."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__(width, eps)  # type: ignore[call-arg]  # MLX's norm, the other base
        self.prepare()

    def prepare(self) -> None:
        """Derive the constants, after the weights are in place."""
        self._scaling = RmsScaling.of(self.weight, self.eps)


class RMSNorm(_Scaled, nn.RMSNorm):
    """x / rms(x) · weight."""

    def __call__(self, x: mx.array) -> mx.array:
        """(…, width) → the same shape."""
        return self._scaling(x)


class LayerNorm(_Scaled, nn.LayerNorm):
    """(x - mean(x)) / σ(x) · weight + bias."""

    def __call__(self, x: mx.array) -> mx.array:
        """(…, width) → the same shape."""
        if self._scaling.in_few_steps(x):
            return self._scaling(x - x.mean(axis=-1, keepdims=True)) + self.bias
        return mx.fast.layer_norm(x, self.weight, self.bias, self.eps)


class OffsetRMSNorm(nn.Module):
    """x / rms(x) · (weight + 1). Gemma stores norm weights as their distance from one."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = mx.zeros((width,))
        self.eps = eps
        self.prepare()

    def prepare(self) -> None:
        """Add the one once, after the weights are in place."""
        self._scaling = RmsScaling.of(self.weight + 1.0, self.eps)

    @property
    def scale(self) -> mx.array:
        """weight + 1."""
        return self._scaling.weight

    def __call__(self, x: mx.array) -> mx.array:
        """(…, width) → the same shape."""
        return self._scaling(x)


class GroupedRMSNorm(nn.Module):
    """x / rms(x) · weight, the rms taken within each group of neighbouring channels."""

    def __init__(self, width: int, groups: int, eps: float) -> None:
        super().__init__()
        self.weight = mx.ones((width,))
        self.groups, self.eps = groups, eps

    def __call__(self, x: mx.array) -> mx.array:
        """(…, width) → the same shape."""
        grouped = x.reshape(*x.shape[:-1], self.groups, -1)
        return mx.fast.rms_norm(grouped, None, self.eps).reshape(x.shape) * self.weight


def add_norm(x: mx.array, y: mx.array, post: OffsetRMSNorm, pre: OffsetRMSNorm) -> mx.array:
    """pre(x + post(y)): the end of a stack of blocks with norms on both sides."""
    if cuda.available():
        return cuda.add_norm(x, y, post.scale, pre.scale, post.eps)
    return pre(x + post(y))
