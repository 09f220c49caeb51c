"""Dense weights laid out for the one or two rows of a frame on a Linux CPU. The numbers stay, their order changes.

A product with few rows reads every weight once, so it should run at the speed of memory. As stored, (N, K), it does
not: OpenBLAS first copies the whole weight into a layout of its own, and the BLAS of MLX's wheel adds up along K, one
number at a time. Large weights become blocks of 64 outputs, (N / 64, K, 64): each is below the size from which
OpenBLAS copies, and both run along the outputs. Small ones keep their shape and lie in memory as (K, N). Either takes
the place of the weight, so nothing is held twice.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_unflatten

from voicechat_mlx.nn.conv import PointwiseConv1d

BLOCK = 64
SMALLEST = 1 << 17
"""Numbers in a weight from which on blocks pay: half a megabyte."""


class PackedLinear(nn.Module):
    """What `nn.Linear` computes, from blocks."""

    def __init__(self, blocks: mx.array, outputs: int, bias: mx.array | None = None) -> None:
        super().__init__()
        self.blocks = blocks
        self._outputs = outputs
        if bias is not None:
            self.bias = bias

    @classmethod
    def of(cls, weight: mx.array, bias: mx.array | None = None) -> PackedLinear:
        """From a weight (N, K)."""
        outputs, inputs = weight.shape
        filled = mx.pad(weight, [(0, -outputs % BLOCK), (0, 0)])
        return cls(mx.contiguous(filled.reshape(-1, BLOCK, inputs).swapaxes(1, 2)), outputs, bias)

    def __call__(self, x: mx.array) -> mx.array:
        """(…, in) → (…, out)."""
        inputs = x.shape[-1]
        rows = x.size // inputs
        y = x.reshape(1, rows, inputs) @ self.blocks
        y = (y if rows == 1 else y.swapaxes(0, 1)).reshape(*x.shape[:-1], -1)
        y = y if y.shape[-1] == self._outputs else y[..., : self._outputs]
        return y + self.bias if "bias" in self else y

    def split(self, bounds: Sequence[int]) -> list[PackedLinear]:
        """At these outputs, multiples of `BLOCK`; the parts share memory."""
        edges = zip([0, *bounds], [*bounds, self._outputs], strict=True)
        return [PackedLinear(self.blocks[start // BLOCK : -(-stop // BLOCK)], stop - start) for start, stop in edges]


def computes_here(weight: mx.array) -> bool:
    """Whether this is about that weight at all: float32, on the CPU of a Linux machine."""
    on_cpu = sys.platform == "linux" and mx.default_device().type == mx.DeviceType.cpu
    return on_cpu and weight.dtype == mx.float32


def packs(weight: mx.array) -> bool:
    """Whether blocks pay for a weight (N, K)."""
    return computes_here(weight) and weight.size >= SMALLEST


def laid_out(weight: mx.array) -> mx.array:
    """(N, K) → the same, in memory as (K, N) where that is faster."""
    return mx.contiguous(weight.T).T if computes_here(weight) else weight


def affine(weight: mx.array, bias: mx.array) -> nn.Module:
    """x ↦ W x + b, for a weight (N, K) that is needed in no other order."""
    return PackedLinear.of(weight, bias) if packs(weight) else _Turned(laid_out(weight).T, bias)


class _Turned(nn.Module):
    """x Wᵀ + b, from Wᵀ (K, N)."""

    def __init__(self, turned: mx.array, bias: mx.array) -> None:
        super().__init__()
        self.turned, self.bias = turned, bias

    def __call__(self, x: mx.array) -> mx.array:
        return x @ self.turned + self.bias


def pack(model: nn.Module, *, except_for: str) -> None:
    """Lay out every dense linear layer but the one of that name, one by one, so that only one is held twice."""
    for path, layer in model.named_modules():
        if type(layer) not in (nn.Linear, PointwiseConv1d) or path.endswith(except_for):
            continue
        pointwise = isinstance(layer, PointwiseConv1d)
        weight = layer.pop("weight")  # the list of modules holds the layer to the end
        layer.pop("_matrix", None)
        weight = weight.squeeze(1) if pointwise else weight
        if packs(weight):
            layer = PackedLinear.of(weight, layer.get("bias"))
            model.update_modules(tree_unflatten([(path, layer)]))
        elif pointwise:
            layer.weight = laid_out(weight)[:, None]
            layer.prepare()
        else:
            layer.weight = laid_out(weight)
        mx.eval(layer.parameters())
