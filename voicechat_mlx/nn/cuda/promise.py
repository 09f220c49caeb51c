"""Results that are not launched yet."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx


class Promise:
    """An array that `make` gives, or that somebody puts into `array` before it is asked for."""

    def __init__(self, shape: tuple[int, ...], dtype: mx.Dtype, make: Callable[[], mx.array | None]) -> None:
        self.shape, self.dtype, self._make = shape, dtype, make
        self.array: mx.array | None = None

    @property
    def size(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    def settled(self) -> mx.array:
        """The array, which is made now if it is not there."""
        if self.array is None:
            made = self._make()
            self.array = self.array if made is None else made
        assert self.array is not None
        return self.array


Array = mx.array | Promise


def settled(x: Any) -> mx.array:
    """An array as it is; a promise is kept first."""
    array: mx.array = x.settled() if isinstance(x, Promise) else x
    return array
