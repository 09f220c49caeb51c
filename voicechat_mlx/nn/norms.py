"""Normalisation beyond what MLX ships: the RMS norm whose stored weight is an offset from one."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn


class OffsetRMSNorm(nn.Module):
    """x / rms(x) · (weight + 1). Gemma stores norm weights as their distance from one."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = mx.zeros((width,))
        self._eps = eps
        self.prepare()

    def prepare(self) -> None:
        """Add the one once, after the weights are in place."""
        self._scale = self.weight + 1.0

    def __call__(self, x: mx.array) -> mx.array:
        """(…, width) → the same shape."""
        return mx.fast.rms_norm(x, self._scale, self._eps)
