"""A LayerNorm between two steps, which needs no launch of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import mlx.core as mx

from voicechat_mlx.nn.cuda.promise import Array, Promise, settled
from voicechat_mlx.nn.cuda.step import Norm


class Later(Promise):
    """norm(x), left to the product that reads it first; made by itself if somebody else wants it before."""

    def __init__(self, x: Array, norm: Norm, plain: Callable[[mx.array], mx.array]) -> None:
        super().__init__(tuple(x.shape), x.dtype)
        self.x: Array | None = x
        self.norm, self._plain = norm, plain
        self.entered: Array | None = None
        """What that product gives as norm(x), which is needed no more then."""

    def fits(self, norm: Norm | None) -> bool:
        """Whether a product with that norm can have this one before it: nobody had it yet, and there is one epsilon."""
        return self.x is not None and self.array is None and (norm is None or norm.eps == self.norm.eps)

    def enter(self, entered: Array) -> None:
        """Let go of x, so that it can stay inside a launch."""
        self.x, self.entered = None, entered

    def settled(self) -> mx.array:
        """norm(x), now."""
        if self.array is None:
            self.put(self._plain(settled(self.x)) if self.entered is None else settled(self.entered))
        return super().settled()


def later(x: mx.array, norm: Norm, plain: Callable[[mx.array], mx.array]) -> mx.array:
    """A promise of plain(x), which is the LayerNorm `norm`."""
    return cast(mx.array, Later(x, norm, plain))


def as_input(x: Array) -> Array:
    """What a step can read: an array, or another step's result."""
    if not isinstance(x, Later):
        return x
    return x.settled() if x.entered is None else x.entered
