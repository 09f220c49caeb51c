"""Normalisation beyond what MLX ships: RMS norms whose weight is an offset from one, or that look at groups."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from voicechat_mlx.nn import cuda


class OffsetRMSNorm(nn.Module):
    """x / rms(x) · (weight + 1). Gemma stores norm weights as their distance from one."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = mx.zeros((width,))
        self.eps = eps
        self.prepare()

    def prepare(self) -> None:
        """Add the one once, after the weights are in place."""
        self._scale = self.weight + 1.0

    @property
    def scale(self) -> mx.array:
        """weight + 1."""
        return self._scale

    def __call__(self, x: mx.array) -> mx.array:
        """(…, width) → the same shape."""
        return mx.fast.rms_norm(x, self._scale, self.eps)


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
