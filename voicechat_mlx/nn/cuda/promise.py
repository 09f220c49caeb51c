"""Results that are not launched yet."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx


@dataclass(frozen=True)
class Result:
    """What a step of a chain gives to later ones, by its name in the kernel."""

    shape: tuple[int, ...]
    dtype: mx.Dtype
    name: str

    @property
    def size(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)


class Promise:
    """An array that will be `put` here; `make` sees to it that it is, when somebody asks for it before."""

    def __init__(self, shape: tuple[int, ...], dtype: mx.Dtype, make: Callable[[], None] | None = None) -> None:
        self.shape, self.dtype, self.make = shape, dtype, make
        self.array: mx.array | None = None
        self.owners: list[tuple[object, str]] = []
        """Of attributes that shall be set to the array as soon as it is there."""

    @property
    def size(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    def put(self, array: mx.array) -> None:
        """Here it is."""
        self.array = array
        for owner, name in self.owners:
            setattr(owner, name, array)

    def settled(self) -> mx.array:
        """The array, which is made now if it is not there."""
        if self.array is None and self.make is not None:
            self.make()
        assert self.array is not None, "the launch that would have made it failed"
        return self.array


Array = mx.array | Promise | Result


def settled(x: Any) -> mx.array:
    """An array as it is; a promise is kept first."""
    array: mx.array = x.settled() if isinstance(x, Promise) else x
    return array
