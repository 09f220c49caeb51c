"""Results that are not launched yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx


class Promise:
    """A product's result before its chain has run."""

    def __init__(self, shape: tuple[int, ...], dtype: mx.Dtype, settle: Callable[[], None]) -> None:
        self.shape, self.dtype, self._settle = shape, dtype, settle
        self.array: mx.array | None = None

    @property
    def size(self) -> int:
        """How many numbers."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    def settled(self) -> mx.array:
        """The array, for which the chain runs if it has not."""
        if self.array is None:
            self._settle()
        assert self.array is not None
        return self.array


Array = mx.array | Promise


def settled(x: Any) -> mx.array:
    """An array as it is; a promise is kept first."""
    array: mx.array = x.settled() if isinstance(x, Promise) else x
    return array
