"""Activation functions as plain expressions.

Unusual: MLX's own are pre-compiled, which on a CPU calls a C++ compiler at the first use and gains nothing there.
Where a whole step is compiled, these fuse with their neighbours.
"""

from __future__ import annotations

import math

import mlx.core as mx


def relu(x: mx.array) -> mx.array:
    """max(x, 0)."""
    return mx.maximum(x, 0)


def silu(x: mx.array) -> mx.array:
    """x · σ(x)."""
    return x * mx.sigmoid(x)


def softplus(x: mx.array) -> mx.array:
    """log(1 + eˣ)."""
    return mx.logaddexp(x, 0)


def gelu(x: mx.array) -> mx.array:
    """x · Φ(x), Φ exact (the codec's)."""
    return x * (0.5 + 0.5 * mx.erf(x * (1 / math.sqrt(2))))


def gelu_tanh(x: mx.array) -> mx.array:
    """Its tanh approximation (the talker's)."""
    return 0.5 * x * (1 + mx.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))


def glu(x: mx.array) -> mx.array:
    """(…, 2C) → (…, C): first half · σ(second half)."""
    value, gate = mx.split(x, 2, axis=-1)
    return value * mx.sigmoid(gate)
