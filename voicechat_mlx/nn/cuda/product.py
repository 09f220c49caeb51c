"""The kernel that a residual block is made of: a norm, a matrix product, an activation and a sum in one launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
from mlx import nn

from voicechat_mlx.nn.activations import geglu, glu, relu_squared, silu
from voicechat_mlx.nn.cuda.launch import THREADS, Template, run
from voicechat_mlx.nn.cuda.launch import bits as floatbits

MOST_ROWS = 2
SHARED_BYTES = 47 * 1024
"""Of the 48 KiB that a block may have: the inputs, and a little for sums."""
ACTIVATIONS: dict[Callable[..., mx.array] | None, int] = {None: 0, silu: 1, relu_squared: 2, geglu: 3, glu: 4}
PAIRED = (geglu, glu)
"""Activations that make one number of two, half the outputs apart."""


@dataclass(frozen=True)
class Weights:
    """A matrix (N, K), dense or packed, and what belongs to it."""

    weight: mx.array
    scales: mx.array | None = None
    offsets: mx.array | None = None
    bias: mx.array | None = None
    group_size: int = 0
    bits: int = 0

    @property
    def inputs(self) -> int:
        """K."""
        packed = 32 // self.bits if self.bits else 1
        return int(self.weight.shape[-1]) * packed

    @property
    def outputs(self) -> int:
        """N."""
        return int(self.weight.shape[0])


@dataclass(frozen=True)
class Norm:
    """What stands before a product: kind 1 is RMS, 2 is LayerNorm, 3 is RMS within groups; `activated` adds SiLU."""

    kind: int
    weight: mx.array
    bias: mx.array | None
    eps: float
    groups: int = 1
    activated: bool = False


@dataclass(frozen=True)
class Addend:
    """What is added to x first: y (rows or one row, K), through an RMS norm with weight `post` if there is one."""

    y: mx.array
    post: mx.array | None = None


def suits(x: mx.array, weights: Weights) -> bool:
    """Whether the kernel takes such inputs and weights: one or two rows, read 16 bytes at a time."""
    rows, width = x.size // x.shape[-1], x.shape[-1]
    if rows > MOST_ROWS or width != weights.inputs or x.dtype not in (mx.float32, mx.bfloat16):
        return False
    if weights.bits:
        at_once = 128 // weights.bits
        kinds = weights.bits in (4, 8) and weights.group_size % at_once == 0
    else:
        at_once = 16 // weights.weight.dtype.size
        kinds = weights.weight.dtype in (x.dtype, mx.bfloat16)
    padded = -(-width // (32 * at_once)) * 32 * at_once
    return kinds and width % at_once == 0 and rows * padded * x.dtype.size <= SHARED_BYTES


def product(
    x: mx.array,
    weights: Weights,
    *,
    norm: Norm | None = None,
    addend: Addend | None = None,
    activation: Callable[..., mx.array] | None = None,
    residual: mx.array | None = None,
    half: bool = False,
) -> tuple[mx.array, mx.array]:
    """x (…, K) → residual + (½) activation(W norm(x + addend) + bias), (…, N or N / 2); and x + addend, if any."""
    rows, width = x.size // x.shape[-1], x.shape[-1]
    paired = activation in PAIRED
    outputs = weights.outputs // 2 if paired else weights.outputs
    per_warp = _outputs_per_warp(outputs, paired=paired)
    bits = weights.bits
    template: Template = [
        ("T", x.dtype),
        ("W", mx.uint32 if bits else weights.weight.dtype),
        ("BITS", bits),
        ("GROUP", weights.group_size or 1),
        ("K", width),
        ("R", rows),
        ("PER", per_warp),
        ("PAIRED", paired),
        ("NORM", norm.kind if norm else 0),
        ("GROUPS", norm.groups if norm else 1),
        ("EPS", floatbits(norm.eps) if norm else 0),
        ("SILU", bool(norm and norm.activated)),
        ("ADD", addend is not None),
        ("ONE", addend is not None and addend.y.size == width),
        ("POST", addend is not None and addend.post is not None),
        ("BIAS", weights.bias is not None),
        ("ACT", ACTIVATIONS[activation]),
        ("RESIDUAL", residual is not None),
        ("HALF", half),
        ("S", weights.scales.dtype if weights.scales is not None else x.dtype),
        ("NORM_WEIGHT", norm.weight.dtype if norm else x.dtype),
        ("B", weights.bias.dtype if weights.bias is not None else x.dtype),
    ]
    inputs = [
        x,
        weights.weight,
        weights.scales,
        weights.offsets,
        norm.weight if norm else None,
        norm.bias if norm else None,
        addend.y if addend else None,
        addend.post if addend else None,
        weights.bias,
        residual,
    ]
    blocks = -(-outputs // (THREADS // 32 * per_warp))
    shapes = [(*x.shape[:-1], outputs), x.shape if addend else None]
    found = run("product", inputs, template, blocks, shapes, [x.dtype] * (2 if addend else 1))
    return found[0], found[-1]


def _outputs_per_warp(outputs: int, *, paired: bool) -> int:
    """Few for small products, so that every multiprocessor has work; more for large ones, which reuse the inputs."""
    matrix_rows = 2 * outputs if paired else outputs
    rows = 1 if matrix_rows < 8192 else 2
    return max(1, rows // 2) if paired else rows


def weights_of(layer: nn.Module) -> Weights:
    """The matrix of a linear layer, quantised or not, or of a convolution with kernel 1."""
    bias = layer.get("bias")
    if "scales" in layer:
        return Weights(layer.weight, layer.scales, layer.biases, bias, layer.group_size, layer.bits)
    weight = layer.weight
    return Weights(weight.reshape(weight.shape[0], -1) if weight.ndim == 3 else weight, bias=bias)
