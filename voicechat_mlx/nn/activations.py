"""Activation functions as plain expressions.

Unusual: MLX's own are pre-compiled, which on a CPU calls a C++ compiler at the first use and gains nothing there.
Where a whole step is compiled, these fuse with their neighbours.
"""

from __future__ import annotations

import math

import mlx.core as mx

_ERF = (1.0, 0.0705230784, 0.0422820123, 0.0092705272, 0.0001520143, 0.0002765672, 0.0000430638)
_TAIL = tuple(a / math.sqrt(2) ** i * 2 ** (1 / 16) for i, a in enumerate(_ERF))
"""The sum's coefficients for t = |x| / √2, scaled so that its 16th power is twice as large."""
_TWICE_SLOPE = 2 * math.sqrt(2 / math.pi)
_TWICE_CUBIC = 0.044715 * _TWICE_SLOPE


def relu(x: mx.array) -> mx.array:
    """max(x, 0)."""
    return mx.maximum(x, 0)


def relu_squared(x: mx.array) -> mx.array:
    """max(x, 0)²."""
    return mx.square(relu(x))


def silu(x: mx.array) -> mx.array:
    """x · σ(x)."""
    return x * mx.sigmoid(x)


def softplus(x: mx.array) -> mx.array:
    """log(1 + eˣ)."""
    return mx.logaddexp(x, 0)


def gelu(x: mx.array) -> mx.array:
    """x · Φ(x) (the codec's), on a CPU with another Φ, exact to 3e-7."""
    return _gelu_of_sums(x) if mx.default_device().type == mx.DeviceType.cpu else _gelu_of_erf(x)


def _gelu_of_erf(x: mx.array) -> mx.array:
    return 0.5 * x * (1 + mx.erf(x * math.sqrt(0.5)))


def _gelu_of_sums(x: mx.array) -> mx.array:
    """1 - erf(t) = 1 / (Σ a_i t^i)^16 for t ≥ 0 (Abramowitz and Stegun 7.1.28).

    MLX's erf costs 24 ns a number on a CPU, more than the rest of the codec; this sum of products costs a tenth of it.
    """
    size = mx.abs(x)
    tail = size * _TAIL[-1] + _TAIL[-2]
    for coefficient in reversed(_TAIL[:-2]):
        tail = tail * size + coefficient
    for _ in range(4):
        tail = tail * tail
    return mx.maximum(x, 0) - size / tail


def gelu_tanh(x: mx.array) -> mx.array:
    """Its tanh approximation (the talker's), written with σ: ½ (1 + tanh u) = σ(2u)."""
    return x * mx.sigmoid(x * (_TWICE_SLOPE + _TWICE_CUBIC * (x * x)))


def geglu(x: mx.array) -> mx.array:
    """(…, 2C) → (…, C): gelu_tanh(first half) · second half."""
    gate, value = mx.split(x, 2, axis=-1)
    return gelu_tanh(gate) * value


def glu(x: mx.array) -> mx.array:
    """(…, 2C) → (…, C): first half · σ(second half)."""
    value, gate = mx.split(x, 2, axis=-1)
    return value * mx.sigmoid(gate)
