"""The files of weights that a conversion writes: which tensors each holds, and how large they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import mlx.core as mx

from voicechat_mlx.safetensors_header import TensorHeader


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One tensor of the source and what becomes of it."""

    source: str
    outputs: dict[str, TensorHeader]
    """Published name → type and shape: one tensor, or the packed weight with its scales and biases."""
    dtype: mx.Dtype
    axes: tuple[int, ...] | None = None
    """The permutation that brings a torch kernel to MLX's order."""
    packing: tuple[int, int] | None = None
    """(group_size, bits) when it is quantised now."""

    @property
    def bytes(self) -> int:
        """Of all outputs."""
        return sum(tensor_bytes(tensor) for tensor in self.outputs.values())


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One file of weights."""

    file: str
    units: tuple[Unit, ...]

    @property
    def tensors(self) -> dict[str, TensorHeader]:
        """Every tensor in it."""
        return {name: tensor for unit in self.units for name, tensor in unit.outputs.items()}

    @property
    def bytes(self) -> int:
        """Without the header."""
        return sum(unit.bytes for unit in self.units)


def cut_into_shards(units: Sequence[Unit], limit: int) -> tuple[Shard, ...]:
    """Cut where the next module would not fit. One that is larger than the limit gets a file of its own.

    A module's tensors stay together, so it makes no difference whether they come from one tensor or from several.
    """
    files: list[list[Unit]] = [[]]
    size = 0
    for _, group in groupby(sorted(units, key=_module), key=_module):
        module = list(group)
        more = sum(unit.bytes for unit in module)
        if files[-1] and size + more > limit:
            files.append([])
            size = 0
        files[-1] += module
        size += more
    names = [f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)]
    names = names if len(files) > 1 else ["model.safetensors"]
    return tuple(Shard(file=name, units=tuple(file)) for name, file in zip(names, files, strict=True))


def _module(unit: Unit) -> str:
    """Path of the module that the unit's tensors belong to."""
    return next(iter(unit.outputs)).rpartition(".")[0]


def tensor_bytes(tensor: TensorHeader) -> int:
    """Size of the numbers."""
    count = item_bytes(tensor)
    for length in tensor.shape:
        count *= length
    return count


def item_bytes(tensor: TensorHeader) -> int:
    """Size of one number."""
    return {"BF16": 2}.get(tensor.dtype, 4)
