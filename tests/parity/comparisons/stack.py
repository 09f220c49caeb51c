"""Layers one above the other, compared one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from torch import Tensor

from tests.parity.pair import to_mlx
from tests.parity.tolerances import FLOAT32
from voicechat_mlx.nn.cache import Cache, KVCache, begin_step, end_step
from voicechat_mlx.report.rows import Row, compare


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The same layer on both sides, from the beginning of a sequence: (B, T, C) → (B, T', C')."""

    name: str
    mlx: Callable[[mx.array], mx.array]
    twin: Callable[[Tensor], Tensor]
    stepwise: Callable[[mx.array], mx.array] | None = None
    """MLX again, one step at a time through its cache, where it has one."""


def compare_layers(layers: Sequence[Layer], x: Tensor, dtype: mx.Dtype = mx.float32) -> Iterator[Row]:
    """Each layer on its own: both sides get the twin's output of the layer below, so no error adds up."""
    for layer in layers:
        theirs, ours = layer.twin(x), to_mlx(x, dtype)
        yield compare(layer.name, layer.mlx(ours), theirs, FLOAT32)
        if layer.stepwise:
            yield compare(f"{layer.name}, step by step", layer.stepwise(ours), theirs, FLOAT32)
        x = theirs


def compare_climbing(
    layers: Sequence[Layer], tops: Sequence[Layer], x: Tensor, dtype: mx.Dtype, tolerance: float
) -> Iterator[Row]:
    """Both sides get the same input at the bottom, then each its own output, so errors add up.

    The `tops` stand side by side on the last layer. It and they are judged, the layers below only measured.
    """
    ours = to_mlx(x, dtype)
    for layer in layers:
        ours, x = layer.mlx(ours), layer.twin(x)
        yield compare(layer.name, ours, x, tolerance if layer is layers[-1] else None)
    for top in tops:
        yield compare(top.name, top.mlx(ours), top.twin(x), tolerance)


def in_pieces(advance: Callable[[mx.array, Any], mx.array], cache: Cache, x: mx.array, size: int) -> mx.array:
    """`advance(piece, cache)` over (B, T, C), `size` steps at a time, joined."""
    outputs = []
    for begin in range(0, x.shape[1], size):
        piece = x[:, begin : begin + size]
        begin_step(cache, piece.shape[1])
        outputs.append(advance(piece, cache))
        mx.eval(outputs)
        end_step(cache, piece.shape[1])
    return mx.concatenate(outputs, axis=1)


def with_mask(layer: Callable[[mx.array, Any, mx.array | None], mx.array]) -> Callable[[mx.array, Any], mx.array]:
    """A layer that is handed the mask of its key/value cache."""
    return lambda x, cache: layer(x, cache, cache.mask(x.shape[1]) if isinstance(cache, KVCache) else None)
