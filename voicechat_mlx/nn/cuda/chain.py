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
from functools import cache
from typing import Any

import mlx.core as mx

from voicechat_mlx.nn.cuda.launch import (
    LEAST_NUMBERS,
    THREADS,
    Kernel,
    Signature,
    available,
    multiprocessors,
    text,
)
from voicechat_mlx.nn.cuda.meeting import leave_words, take_words
from voicechat_mlx.nn.cuda.part import Part
from voicechat_mlx.nn.cuda.promise import Array, Promise, settled
from voicechat_mlx.nn.cuda.step import Step

SPARED = 2
"""Multiprocessors left to what runs beside a chain, such as the transducer, for which all blocks would have to wait."""
GIVEN, LEAST_ASKED = 48 * 1024, 48_016
"""Bytes of shared memory that a block may have, and what a kernel must ask for before MLX lets it have more."""
SUM_BYTES = 1152
"""Of shared memory that all steps share besides their inputs, or less."""
LONGEST = 10
"""Steps in a launch, a layer of the encoder: a kernel of more takes long to compile, and saves little."""


Link = Step | Part
Results = list[mx.array | None]


class Chain:
    """Steps that wait to be run."""

    def __init__(self) -> None:
        self._steps: list[Link] = []
        self._results: list[list[Promise | None]] = []

    def record(self, step: Link) -> list[Promise | None]:
        """Promises of what `launch` gives for the step."""
        if len(self._steps) == LONGEST or (step.leads and self._steps):
            self.run()
        promises = [None if result is None else Promise(*result, self.run) for result in step.results]
        self._steps.append(step)
        self._results.append(promises)
        return promises

    def run(self) -> None:
        """Keep all promises."""
        steps, results = self._steps, self._results
        self._steps, self._results = [], []
        for promises, arrays in zip(results, launch(steps, results) if steps else [], strict=True):
            for promise, array in zip(promises, arrays, strict=True):
                if promise is not None and array is not None:
                    promise.put(array)


_recorded: ContextVar[Chain | None] = ContextVar("recorded", default=None)


@contextmanager
def chaining() -> Iterator[None]:
    """Record products, where that is possible."""
    if not available() or recording():
        yield
        return
    chain = Chain()
    token = _recorded.set(chain)
    try:
        yield
        chain.run()
    finally:
        _recorded.reset(token)


def recording() -> Chain | None:
    """The chain that products go into now."""
    return _recorded.get()


def at_once() -> int:
    """Blocks that may wait for one another: one on each multiprocessor but a few."""
    return max(1, multiprocessors() - SPARED)


def take(step: Link) -> list[Any]:
    """The step's results: promises where a chain is recorded, otherwise it is launched by itself."""
    chain = recording()
    return chain.record(step) if chain else launch([step])[0]


def launch(steps: Sequence[Link], promises: Sequence[Sequence[Promise | None]] = ()) -> list[Results]:
    """Each step's results. `promises` of them, in their order, may be inputs of later steps."""
    blocks = at_once() if len(steps) > 1 else steps[0].tiles
    if steps[0].on_tensor_cores:  # which prepare the inputs once for all tiles of a block
        blocks = min(blocks, 2 * at_once())
    steps = [step.placed(blocks) for step in steps] if len(steps) > 1 else steps
    known: dict[int, str] = {}
    inputs: list[tuple[str, mx.array]] = []
    outputs: list[tuple[str, tuple[int, ...], mx.Dtype]] = []

    def name_of(value: Array | None, absent: str) -> str:
        if value is None:
            return absent
        if id(value) not in known:
            known[id(value)] = f"in{len(inputs)}"
            inputs.append((known[id(value)], settled(value)))
        return known[id(value)]

    calls = []
    for i, step in enumerate(steps):
        sources = [name_of(value, absent) for value, absent in step.arguments]
        targets = ["nullptr" if each is None else f"out{i}_{place}" for place, each in enumerate(step.results)]
        outputs += [(name, *each) for name, each in zip(targets, step.results, strict=True) if each is not None]
        for promise, name in zip(promises[i] if promises else (), targets, strict=bool(promises)):
            if promise is not None:
                known[id(promise)] = name
        arguments = ["held", "meeting" if i else "beginning", *sources, *targets]
        calls.append(f"{step.function}<Step{i}>({', '.join(arguments)});\n")
    if len(steps) > 1:
        inputs.append(("words", take_words()))
        outputs.append(("next_words", (LEAST_NUMBERS,), mx.uint32))
    signature = Signature(tuple(name for name, _ in inputs), tuple(name for name, _, _ in outputs))
    headers = tuple(dict.fromkeys(header for step in steps for header in step.headers))
    structs = tuple(tuple(step.constants.items()) for step in steps)
    shapes, dtypes = [shape for _, shape, _ in outputs], [dtype for _, _, dtype in outputs]
    held, sums = max(step.held_bytes for step in steps), SUM_BYTES + sum(step.sum_bytes for step in steps)
    shared = held if held + sums <= GIVEN else max(held, LEAST_ASKED)
    kernel = _kernel(f"{steps[0].function}_{len(steps)}", headers, structs, signature, "".join(calls), shared)
    found = iter(kernel([array for _, array in inputs], (), blocks, THREADS, shapes, dtypes))
    results = [[None if each is None else next(found) for each in step.results] for step in steps]
    if len(steps) > 1:
        leave_words(next(found))
    return results


@cache
def _kernel(
    name: str,
    headers: tuple[str, ...],
    structs: tuple[tuple[tuple[str, Any], ...], ...],
    signature: Signature,
    calls: str,
    shared_bytes: int,
) -> Kernel:
    header = [text(each) for each in headers]
    for i, members in enumerate(structs):
        lines = [
            f"  using {name} = {value};" if isinstance(value, str) else f"  static constexpr int {name} = {int(value)};"
            for name, value in members
        ]
        header.append("\n".join([f"struct Step{i} {{", *lines, "};\n"]))
    source = ["DYNAMIC_SHARED(uint4, held);\nconst float* const nothing = nullptr;\nNoMeeting beginning;\n"]
    if "words" in signature.inputs:
        source.append("Meeting meeting{const_cast<unsigned*>(words)};\nclear(next_words);\n")
    return Kernel(name, signature, "".join([*source, calls]), "\n".join(header), shared_bytes)
