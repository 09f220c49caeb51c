"""An activation on its way through both sides, block after block, and the rows that come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
from torch import Tensor

from voicechat_mlx.report.rows import Row, compare
from voicechat_mlx.verify.limits import Limits
from voicechat_mlx.verify.sides import Pair, to_mlx

ALONE, OWN = "the twin's input", "its own input"
"""What MLX was given: the same as the twin, or what it had computed itself up to there."""


@dataclass
class Work:
    """What is compared, how strictly, and what was found so far."""

    pair: Pair
    limits: Limits
    done: Callable[[], None]
    """Called after each block."""
    rows: list[Row] = field(default_factory=list)
    section: str = ""

    @contextmanager
    def filled(self, *prefixes: str) -> Iterator[tuple[Any, Any]]:
        """(MLX model, twin) with these parameters in memory."""
        with self.pair.filled(*prefixes) as sides:
            yield sides
        self.done()

    def add(self, row: Row, run: str = ALONE) -> None:
        """Keep a row, told where it belongs."""
        self.rows.append(replace(row, section=self.section, run=run))


@dataclass
class Track:
    """The twin's activation, and MLX's own, in which errors add up."""

    work: Work
    twin: Tensor
    own: mx.array
    dtype: mx.Dtype
    limit: float | None

    @classmethod
    def start(cls, work: Work, x: Tensor, dtype: mx.Dtype, limit: float | None) -> Track:
        """The same on both sides."""
        return cls(work, x, to_mlx(x, dtype), dtype, limit)

    def step(self, name: str, ours: Callable[[mx.array], mx.array], theirs: Callable[[Tensor], Tensor]) -> None:
        """Through one block: MLX twice, on the twin's activation to be judged, and on its own to go on with."""
        expected = theirs(self.twin)
        self.work.add(compare(name, ours(to_mlx(self.twin, self.dtype)), expected, self.limit))
        self.own = ours(self.own)
        mx.eval(self.own)
        self.twin = expected

    def note_drift(self, name: str) -> None:
        """How far the two are apart by now."""
        self.work.add(compare(name, self.own, self.twin, None), run=OWN)
