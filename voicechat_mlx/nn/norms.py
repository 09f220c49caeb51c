"""Normalisation beyond what MLX ships: the RMS norm whose stored weight is an offset from one."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.activations import silu


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

    def __call__(self, x: mx.array) -> mx.array:
        """(…, width) → the same shape."""
        return mx.fast.rms_norm(x, self._scale, self.eps)


def add_norm(
    x: mx.array, y: mx.array, post: OffsetRMSNorm, pre: OffsetRMSNorm | None = None
) -> tuple[mx.array, mx.array]:
    """The step between two sublayers: x + post(y), and pre of that (or the sum itself where there is no `pre`)."""
    if cuda.available():
        return cuda.add_norm(x, y, post._scale, pre._scale if pre else None, post.eps)
    total = x + post(y)
    return total, pre(total) if pre else total


def add_rms_norm(x: mx.array, y: mx.array, norm: nn.RMSNorm) -> tuple[mx.array, mx.array]:
    """x + y, and the norm of that."""
    if cuda.available():
        return cuda.add_norm(x, y, None, norm.weight, norm.eps)
    total = x + y
    return total, norm(total)


def add_layer_norm(x: mx.array, y: mx.array, norm: nn.LayerNorm, *, half: bool = False) -> tuple[mx.array, mx.array]:
    """x + y, or x + ½ y, and the norm of that."""
    if cuda.available():
        return cuda.add_layer_norm(x, y, norm.weight, norm.bias, norm.eps, half=half, silu=False)
    total = x + 0.5 * y if half else x + y
    return total, norm(total)


def layer_norm_silu(x: mx.array, norm: nn.LayerNorm) -> mx.array:
    """silu(norm(x))."""
    if cuda.available():
        return cuda.add_layer_norm(x, None, norm.weight, norm.bias, norm.eps, half=False, silu=True)[1]
    return silu(norm(x))
