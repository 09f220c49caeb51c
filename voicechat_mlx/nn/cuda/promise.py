"""Results that are not launched yet."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx


class Promise:
    """An array that `make` gives, or that somebody `put`s there before it is asked for."""

    def __init__(self, shape: tuple[int, ...], dtype: mx.Dtype, make: Callable[[], mx.array | None]) -> None:
        self.shape, self.dtype, self._make = shape, dtype, make
        self.array: mx.array | None = None
        self._awaited: list[tuple[object, str]] = []

    @property
    def size(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    def put(self, array: mx.array) -> None:
        """Here it is."""
        self.array = array
        for owner, name in self._awaited:
            setattr(owner, name, array)

    def await_for(self, owner: object, name: str) -> None:
        """Set an attribute as soon as the array is there."""
        self._awaited.append((owner, name))

    def settled(self) -> mx.array:
        """The array, which is made now if it is not there."""
        if self.array is None:
            made = self._make()
            if made is not None:
                self.put(made)
        assert self.array is not None
        return self.array


Array = mx.array | Promise


def settled(x: Any) -> mx.array:
    """An array as it is; a promise is kept first."""
    array: mx.array = x.settled() if isinstance(x, Promise) else x
    return array


def keep(x: Array, owner: object, name: str) -> None:
    """Set an attribute to an array, now or as soon as it is there: caches hold no promises."""
    if isinstance(x, Promise) and x.array is None:
        x.await_for(owner, name)
    else:
        setattr(owner, name, settled(x))
