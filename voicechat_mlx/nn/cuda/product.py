"""The kernel that a residual block is made of: a norm, a matrix product, an activation and a sum in one launch.

Inside `chaining` a product is only recorded, and several of them run in one launch (`chain`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import mlx.core as mx
from mlx import nn

from voicechat_mlx.nn.cuda.chain import take
from voicechat_mlx.nn.cuda.later import Later, as_input
from voicechat_mlx.nn.cuda.launch import INPUT_BYTES
from voicechat_mlx.nn.cuda.promise import Array
from voicechat_mlx.nn.cuda.step import Addend, Norm, Step, Weights

MOST_ROWS = 2


def suits(x: Array, weights: Weights) -> bool:
    """Whether the kernel takes such inputs and weights: one or two rows, read 16 bytes at a time."""
    rows, width = x.size // x.shape[-1], x.shape[-1]
    if rows > MOST_ROWS or width != weights.inputs or x.dtype not in (mx.float32, mx.bfloat16):
        return False
    at_once = weights.per_read
    if weights.bits:
        kinds = weights.bits in (4, 8) and weights.group_size % at_once == 0
    else:
        kinds = weights.weight.dtype in (x.dtype, mx.bfloat16)
    padded = -(-width // (32 * at_once)) * 32 * at_once
    return kinds and width % at_once == 0 and rows * padded * x.dtype.size <= INPUT_BYTES


def product(
    x: Array,
    weights: Weights,
    *,
    norm: Norm | None = None,
    before: Addend | Norm | None = None,
    activation: Callable[..., mx.array] | None = None,
    residual: Array | None = None,
    half: bool = False,
    keeps_normed: bool = False,
) -> tuple[mx.array, mx.array]:
    """x (…, K) → residual + (½) activation(W norm(s) + bias), (…, N or N / 2), and s (…, K).

    s is x + `before`, or `before`, a LayerNorm, of x, or x itself. With `keeps_normed`, norm(s) is given in its place.
    While a chain is recorded these are promises of arrays; see `settled`.
    """
    left = x if isinstance(x, Later) and before is None and x.fits(norm) else None
    source, first = (cast(Array, left.x), left.norm) if left else (as_input(x), before)
    residual = None if residual is None else as_input(residual)
    step = Step(source, weights, norm, first, activation, residual, half, keeps_normed)
    out, entered = take(step)
    if left:
        left.enter(entered)
    return cast(mx.array, out), cast(mx.array, x if entered is None else entered)


def weights_of(layer: nn.Module) -> Weights:
    """The matrix of a linear layer, quantised or not, or of a convolution with kernel 1."""
    bias = layer.get("bias")
    if "scales" in layer:
        return Weights(layer.weight, layer.scales, layer.biases, bias, layer.group_size, layer.bits)
    weight = layer.weight
    return Weights(weight.reshape(weight.shape[0], -1) if weight.ndim == 3 else weight, bias=bias)
