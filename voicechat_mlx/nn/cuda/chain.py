"""Several steps in one launch: every multiprocessor takes its share of each, and all wait for one another between.

On a GPU a frame is bound by what the host spends on each launch. Inside `chaining` steps are recorded, not launched;
they run together as soon as somebody needs one of their results (`settled`). While the blocks wait for each other, the
weights of the next product are already on their way.

Blocks that wait for each other must run at the same time, so there are no more of them than the GPU has room for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary, ref

import mlx.core as mx

from voicechat_mlx.nn.cuda.launch import (
    LEAST_NUMBERS,
    THREADS,
    Signature,
    available,
    multiprocessors,
)
from voicechat_mlx.nn.cuda.meeting import leave_words, take_words
from voicechat_mlx.nn.cuda.promise import Array, Promise, Result, settled
from voicechat_mlx.nn.cuda.source import Link, Source, name_of
from voicechat_mlx.nn.cuda.step import SUM_BYTES

SPARED = 2
"""Multiprocessors left to what runs beside a chain, such as random numbers, for which all blocks would have to wait."""
GIVEN, LEAST_ASKED = 48 * 1024, 48_016
"""Bytes of shared memory that a block may have, and what a kernel must ask for before MLX lets it have more."""
LONGEST = 10
"""Steps in a launch, a layer of the encoder: a kernel of more takes long to compile, and saves little."""
Results = list[mx.array | None]
"""None where there is none, or where it stays inside."""


class Chain:
    """Steps that wait to be run. What nobody holds any more when they run stays inside the launch."""

    def __init__(self) -> None:
        self._steps: list[Link] = []
        self._results: list[list[ref[Promise] | None]] = []
        self._names: WeakKeyDictionary[Promise, str] = WeakKeyDictionary()
        self._kept: list[Promise] = []

    def record(self, step: Link) -> list[Promise | None]:
        """Promises of what `launch` gives for the step."""
        step = step.reading(lambda value: value if value in self else settled(value))  # which may run what is recorded
        if len(self._steps) == LONGEST or (step.leads and self._steps):
            self.run()
        step = step.reading(self._result_or_settled)
        promises = [None if each is None else Promise(*each, self.run) for each in step.results]
        for i, promise in enumerate(promises):
            if promise is not None:
                self._names[promise] = name_of(len(self._steps), i)
        self._steps.append(step)
        self._results.append([None if each is None else ref(each) for each in promises])
        return promises

    def __contains__(self, value: object) -> bool:
        """Whether it is promised, and its step has not run."""
        return isinstance(value, Promise) and value in self._names

    def keep(self, value: Array, owner: object, name: str) -> None:
        """Set the attribute when the step has run; until then it has its old value, and nobody may read that again."""
        waiting = [place for each in self._kept for place in each.owners]
        assert not any(owner is other and name == taken for other, taken in waiting), f"{name} is set twice in a chain"
        if isinstance(value, Promise) and value in self:
            value.owners.append((owner, name))
            self._kept.append(value)
        else:
            setattr(owner, name, settled(value))

    def break_off(self) -> None:
        """Set no attribute any more."""
        for promise in self._kept:
            promise.owners.clear()

    def run(self) -> None:
        """Launch what is recorded, and put the results where somebody still holds their promise."""
        steps, rows = self._steps, [[each() if each else None for each in row] for row in self._results]
        self._steps, self._results, self._kept = [], [], []
        self._names.clear()
        held = [[each is not None for each in row] for row in rows]
        for promises, arrays in zip(rows, launch(steps, held) if steps else [], strict=True):
            for promise, array in zip(promises, arrays, strict=True):
                if promise is not None and array is not None:
                    promise.put(array)

    def _result_or_settled(self, value: Array) -> Array:
        if isinstance(value, Promise) and value in self:
            return Result(value.shape, value.dtype, self._names[value])
        return settled(value)


_recorded: ContextVar[Chain | None] = ContextVar("recorded", default=None)


@contextmanager
def chaining() -> Iterator[None]:
    """Record steps, where that is possible, and run them at the end; inside another one, at that one's end."""
    if not available() or recording():
        yield
        return
    chain = Chain()
    token = _recorded.set(chain)
    try:
        yield
        chain.run()
    except BaseException:
        chain.break_off()
        raise
    finally:
        _recorded.reset(token)


def recording() -> Chain | None:
    """The chain that steps go into now."""
    return _recorded.get()


def at_once() -> int:
    """Blocks that may wait for one another: one on each multiprocessor but a few."""
    return max(1, multiprocessors() - SPARED)


def take(step: Link) -> list[Any]:
    """The step's results: promises where a chain is recorded, otherwise it is launched by itself."""
    chain = recording()
    return chain.record(step) if chain else launch([step])[0]


def keep(x: Array, owner: object, name: str) -> None:
    """Set an attribute to an array, now or as soon as it is there: caches hold no promises."""
    if chain := recording():
        chain.keep(x, owner, name)
    else:
        setattr(owner, name, settled(x))


def launch(steps: Sequence[Link], held: Sequence[Sequence[bool]] | None = None) -> list[Results]:
    """Each step's results, or of several steps those that are `held`; the others share an array that nobody sees."""
    blocks = at_once() if len(steps) > 1 else steps[0].tiles
    if steps[0].on_tensor_cores:  # which prepare the inputs once for all tiles of a block
        blocks = min(blocks, 2 * at_once())
    steps = [step.placed(blocks) for step in steps] if len(steps) > 1 else steps
    source = Source()
    outside = [
        source.add(step, [True] * len(step.results) if held is None else held[i]) for i, step in enumerate(steps)
    ]
    inputs, outputs = source.inputs, source.all_outputs
    if len(steps) > 1:
        inputs.append(("words", take_words()))
        outputs.append(("next_words", (LEAST_NUMBERS,), mx.uint32))
    signature = Signature(tuple(name for name, _ in inputs), tuple(name for name, _, _ in outputs))
    needed, sums = max(step.held_bytes for step in steps), SUM_BYTES + sum(step.sum_bytes for step in steps)
    shared = needed if needed + sums <= GIVEN else max(needed, LEAST_ASKED)
    kernel = source.kernel(signature, shared)
    shapes, dtypes = [shape for _, shape, _ in outputs], [dtype for _, _, dtype in outputs]
    found = kernel([array for _, array in inputs], (), blocks, THREADS, shapes, dtypes)
    if len(steps) > 1:
        leave_words(found[-1])
    arrays = iter(found)
    return [[next(arrays) if is_outside else None for is_outside in row] for row in outside]
