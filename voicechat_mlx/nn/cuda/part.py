"""A step that is no product, as data: a device function of its own, which may stand in a chain between products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from voicechat_mlx.nn.cuda.launch import C_TYPES, THREADS
from voicechat_mlx.nn.cuda.promise import Array, Promise


@dataclass(frozen=True)
class Part:
    """`function` of the header that has its name, for the members `template` of a struct."""

    function: str
    template: dict[str, int | bool | mx.Dtype]
    inputs: tuple[Array | None, ...]
    """In the function's order. The first may be what an earlier step of the same launch gives."""
    outputs: tuple[tuple[tuple[int, ...], mx.Dtype], ...]
    """Shapes and dtypes, in the function's order."""
    tiles: int
    """Blocks that have work."""
    sum_bytes: int
    """Of shared memory, or less."""
    leads: bool = False
    """Whether a chain shall begin with it, so that chains of the same layers are the same kernel."""

    on_tensor_cores = False
    held_bytes = 0

    def reading(self, found: Callable[[Array], Array]) -> Part:
        """The same with its first input as `found` says. The others are read before the blocks meet."""
        assert not any(isinstance(each, Promise) for each in self.inputs[1:]), "only the first input can be a promise"
        assert self.inputs[0] is not None
        return replace(self, inputs=(found(self.inputs[0]), *self.inputs[1:]))

    def placed(self, blocks: int) -> Part:
        """The same as a part of a chain of so many blocks."""
        del blocks
        return self

    @property
    def headers(self) -> tuple[str, ...]:
        """Where the function is."""
        return (f"{self.function}.cuh",)

    @property
    def constants(self) -> dict[str, Any]:
        """Members of the struct that the function is compiled for."""
        kinds = {key: C_TYPES[value] if isinstance(value, mx.Dtype) else value for key, value in self.template.items()}
        return {**kinds, "THREADS": THREADS}

    @property
    def arguments(self) -> list[tuple[Array | None, str]]:
        """The function's inputs in its order, and what stands there if one is missing."""
        return [(each, "nothing") for each in self.inputs]

    @property
    def results(self) -> list[tuple[tuple[int, ...], mx.Dtype] | None]:
        """Shape and dtype of what comes out."""
        return list(self.outputs)
