"""One product as data: what product.cuh needs to know when it is compiled, and what when it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import mlx.core as mx

from voicechat_mlx.nn.activations import geglu, glu, relu_squared, silu
from voicechat_mlx.nn.cuda.launch import C_TYPES, THREADS, bits, has_tensor_cores
from voicechat_mlx.nn.cuda.promise import Array

ACTIVATIONS: dict[Callable[..., mx.array] | None, int] = {None: 0, silu: 1, relu_squared: 2, geglu: 3, glu: 4}
MOST_READS = 20
"""Of 16 bytes that a thread of a chain may have on the way: 80 registers."""
TENSOR_TILE = 16
"""Outputs of a tile where tensor cores multiply."""
SUM_BYTES = 1152
"""Of shared memory for what the warps of a tile add up, or less; the system takes as much of each block."""
LANES = 32
"""Of a warp; each writes one of the warp's outputs."""
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
    def per_read(self) -> int:
        """Weights in 16 bytes."""
        return 128 // (self.bits or 8 * self.weight.dtype.size)

    @property
    def outputs(self) -> int:
        """N."""
        return int(self.weight.shape[0])


@dataclass(frozen=True)
class Norm:
    """Kind 1 is RMS, 2 is LayerNorm, 3 is RMS within groups; `activated` adds SiLU."""

    kind: int
    weight: mx.array
    bias: mx.array | None
    eps: float
    groups: int = 1
    activated: bool = False


@dataclass(frozen=True)
class Addend:
    """What is added to x first: y (rows or one row, K), through an RMS norm with weight `post` if there is one."""

    y: Array
    post: mx.array | None = None
    eps: float = 0.0


@dataclass(frozen=True)
class Step:
    """residual + (½) activation(W norm(s) + bias), s = x + addend or LayerNorm(x); see `product`."""

    x: Array
    weights: Weights
    norm: Norm | None = None
    before: Addend | Norm | None = None
    activation: Callable[..., mx.array] | None = None
    residual: Array | None = None
    half: bool = False
    keeps_normed: bool = False
    blocks: int = 0
    """Of the chain that it is a part of, where all of them run at once."""

    headers = ("product.cuh", "tensor_product.cuh")
    leads = False
    sum_bytes = SUM_BYTES

    def reading(self, found: Callable[[Array], Array]) -> Step:
        """The same with each row as `found` says."""
        before = self.before
        if isinstance(before, Addend):
            before = replace(before, y=found(before.y))
        residual = None if self.residual is None else found(self.residual)
        return replace(self, x=found(self.x), before=before, residual=residual)

    def placed(self, blocks: int) -> Step:
        """The same as a part of a chain of so many blocks."""
        return replace(self, blocks=blocks)

    @property
    def function(self) -> str:
        """In the headers."""
        return "tensor_product" if self.on_tensor_cores else "product"

    @property
    def arguments(self) -> list[tuple[Array | None, str]]:
        """The function's inputs in its order, and what stands there if one is missing."""
        return [*((row, "nullptr") for row in self.rows), *((each, "nothing") for each in self.parameters)]

    @property
    def results(self) -> list[tuple[tuple[int, ...], mx.Dtype] | None]:
        """Shape and dtype of what comes out: the product, and what entered the block, where that is not x."""
        rows = tuple(self.x.shape)
        return [((*rows[:-1], self.outputs), self.x.dtype), (rows, self.x.dtype) if self.enters else None]

    @property
    def paired(self) -> bool:
        """Whether two products make one output."""
        return self.activation in PAIRED

    @property
    def outputs(self) -> int:
        """Numbers of a row that come out."""
        return self.weights.outputs // 2 if self.paired else self.weights.outputs

    @property
    def row_count(self) -> int:
        """Rows of x."""
        return self.x.size // self.weights.inputs

    @property
    def on_tensor_cores(self) -> bool:
        """Whether `tensor_product` takes it: one row of bfloat16 by 4 bits in groups of 64."""
        weights = self.weights
        one_row = self.row_count == 1 and self.x.dtype == mx.bfloat16 and not self.paired
        scales = weights.scales
        packed = weights.bits == 4 and weights.group_size == 64 and weights.outputs * weights.inputs % (8 * 64) == 0
        return one_row and packed and scales is not None and scales.dtype == mx.bfloat16 and has_tensor_cores()

    @property
    def reads(self) -> int:
        """Times 16 bytes that a lane reads of a row of weights."""
        return -(-self.weights.inputs // (LANES * self.weights.per_read))

    @property
    def held_bytes(self) -> int:
        """Shared memory for the inputs, as `prepare` lays them out, and what tensor cores need besides."""
        size = self.x.dtype.size
        if not self.on_tensor_cores:
            return self.row_count * self.reads * LANES * self.weights.per_read * size
        groups = self.weights.inputs // self.weights.group_size
        zeros, sums, factors = 8 * 16, -(-(groups + 1) // 4) * 16, 2 * 2 * TENSOR_TILE * groups * size
        return self.weights.inputs * size + zeros + sums + factors

    @property
    def per_warp(self) -> int:
        """Few for small products, so that every multiprocessor has work; more for large ones, to reuse the inputs.

        In a chain as many as spare the blocks a second tile, if all their weights can be on the way at once.
        """
        each = 2 if self.paired else 1
        for_one_tile = -(-self.outputs // (THREADS // 32 * self.blocks)) if self.blocks else 0
        if 0 < for_one_tile * each * self.reads <= MOST_READS and self.row_count * for_one_tile <= LANES:
            return for_one_tile
        return max(1, (1 if self.weights.outputs < 8192 else 2) // each)

    @property
    def tiles(self) -> int:
        """Parts that blocks can work on at the same time."""
        if self.on_tensor_cores:
            return -(-self.outputs // TENSOR_TILE)
        return -(-self.outputs // (THREADS // 32 * self.per_warp))

    @property
    def enters(self) -> bool:
        """Whether something else than x enters the block, which later steps want to know."""
        return self.before is not None or self.keeps_normed

    @property
    def constants(self) -> dict[str, str | int | bool]:
        """Members of the struct that product.cuh is compiled for."""
        norm, weights, before = self.norm, self.weights, self.before
        addend = before if isinstance(before, Addend) else None
        eps = {each.eps for each in (norm, before) if isinstance(each, Norm)}
        eps |= {addend.eps} if addend and addend.post is not None else set()
        assert len(eps) <= 1, "the kernel knows one epsilon"
        return {
            "T": C_TYPES[self.x.dtype],
            "N": weights.outputs,
            "K": weights.inputs,
            "R": self.row_count,
            "PER": self.per_warp,
            "AHEAD": 16 if self.blocks else 8,
            "WEIGHT_BYTES": weights.weight.dtype.size,
            "BITS": weights.bits,
            "GROUP": weights.group_size or 1,
            "PAIRED": self.paired,
            "NORM": norm.kind if norm else 0,
            "GROUPS": norm.groups if norm else 1,
            "EPS": bits(eps.pop() if eps else 0.0),
            "SILU": bool(norm and norm.activated),
            "PRE": isinstance(before, Norm),
            "ADD": addend is not None,
            "ONE": addend is not None and addend.y.size == weights.inputs,
            "POST": addend is not None and addend.post is not None,
            "NORMED": self.keeps_normed,
            "BIAS": weights.bias is not None,
            "ACT": ACTIVATIONS[self.activation],
            "RESIDUAL": self.residual is not None,
            "HALF": self.half,
            "TENSOR": self.on_tensor_cores,
        }

    @property
    def rows(self) -> list[Array | None]:
        """The kernel's inputs of x's dtype, in its order."""
        return [self.x, self.before.y if isinstance(self.before, Addend) else None, self.residual]

    @property
    def parameters(self) -> list[mx.array | None]:
        """The kernel's other inputs, in its order."""
        norm, weights, before = self.norm, self.weights, self.before
        first = before if isinstance(before, Norm) else None
        return [
            weights.weight,
            weights.scales,
            weights.offsets,
            norm.weight if norm else None,
            norm.bias if norm else None,
            before.post if isinstance(before, Addend) else first.weight if first else None,
            first.bias if first else None,
            weights.bias,
        ]
