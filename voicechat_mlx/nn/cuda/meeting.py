"""Where the blocks of a launch count themselves when they meet.

A launch needs zeros that nobody else writes: the one before leaves them to it. So all launches that meet inside
`meetings` also follow each other, and none of them can disturb another's count.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import cycle

import mlx.core as mx

from voicechat_mlx.nn.cuda.launch import LEAST_NUMBERS

_sizes = cycle(range(LEAST_NUMBERS, 4096))
"""Of two equal arrays `mx.compile` would make one."""
_left: ContextVar[list[mx.array] | None] = ContextVar("left", default=None)


@contextmanager
def meetings() -> Iterator[None]:
    """Around what is traced or run together: nothing from outside comes in, nothing from inside gets out."""
    token = _left.set([])
    try:
        yield
    finally:
        _left.reset(token)


def take_words() -> mx.array:
    """At least 16 zeros, for one launch."""
    left = _left.get()
    return left.pop() if left else mx.zeros((next(_sizes),), dtype=mx.uint32)


def leave_words(words: mx.array) -> None:
    """What that launch has set to zero, for the next."""
    left = _left.get()
    if left is not None:
        left.append(words)
