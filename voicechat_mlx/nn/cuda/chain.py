"""Several products in one launch: every multiprocessor takes its share of each, and all wait for one another between.

On a GPU a frame is bound by what the host spends on each launch. Inside `chaining` products are recorded, not launched;
they run together as soon as somebody needs one of their results (`settled`). While the blocks wait for each other, the
weights of the next product are already on their way.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from typing import Any

import mlx.core as mx

from voicechat_mlx.nn.cuda.launch import LEAST_NUMBERS, THREADS, available, build, multiprocessors, text
from voicechat_mlx.nn.cuda.promise import Array, Promise, settled
from voicechat_mlx.nn.cuda.step import Step

SWITCH = "VOICECHAT_CUDA_CHAINS"
"""Environment variable: 1 joins launches."""
SPARED = 2
"""Multiprocessors left to what runs beside a chain, such as the transducer, for which all blocks would have to wait."""
LONGEST = 8
"""Products in a launch: a kernel of more takes long to compile, and saves little."""


class Chain:
    """Products that wait to be run."""

    def __init__(self, barrier: mx.array) -> None:
        self._barrier = barrier
        self._steps: list[Step] = []
        self._results: list[tuple[Promise, Promise | None]] = []

    def record(self, step: Step) -> tuple[Promise, Promise | None]:
        """Promises of what `launch` gives for the step."""
        if len(self._steps) == LONGEST:
            self.run()
        shape = (*step.x.shape[:-1], step.outputs)
        out = Promise(shape, step.x.dtype, self.run)
        entered = Promise(step.x.shape, step.x.dtype, self.run) if step.enters else None
        self._steps.append(step)
        self._results.append((out, entered))
        return out, entered

    def run(self) -> None:
        """Keep all promises."""
        steps, results = self._steps, self._results
        self._steps, self._results = [], []
        found = launch(steps, self._barrier, [promise for pair in results for promise in pair]) if steps else []
        for promises, arrays in zip(results, found, strict=True):
            for promise, array in zip(promises, arrays, strict=True):
                if promise is not None:
                    promise.array = array


_recorded: ContextVar[Chain | None] = ContextVar("recorded", default=None)


@contextmanager
def chaining(place: str) -> Iterator[None]:
    """Record products, where that is possible. `place` names what runs here: two places may run side by side."""
    words = barrier(place)
    if words is None or recording():
        yield
        return
    chain = Chain(words)
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


def barrier(place: str) -> mx.array | None:
    """Where the blocks of a launch at that place count themselves, if they may wait for one another."""
    if not available() or os.environ.get(SWITCH) != "1" or not multiprocessors():
        return None
    return _words(place)


@cache
def _words(place: str) -> mx.array:
    """The only array that a launch changes, and it leaves as many blocks waiting as it found: none."""
    words = mx.zeros((LEAST_NUMBERS,), dtype=mx.uint32)
    mx.eval(words)
    return words


def launch(
    steps: Sequence[Step], barrier: mx.array | None = None, promises: Sequence[Promise | None] = ()
) -> list[tuple[mx.array, mx.array | None]]:
    """Each step's result, and what entered its block where that is not x. One step needs no barrier.

    `promises` of these results, in their order, may be inputs of later steps.
    """
    blocks = steps[0].tiles if len(steps) == 1 else at_once()
    steps = [replace(step, blocks=blocks) for step in steps] if len(steps) > 1 else steps
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
        rows = [name_of(value, "nullptr") for value in step.rows]
        parameters = [name_of(value, "nothing") for value in step.parameters]
        results = [f"out{i}", f"sum{i}" if step.enters else "nullptr"]
        outputs.append((results[0], (*step.x.shape[:-1], step.outputs), step.x.dtype))
        if step.enters:
            outputs.append((results[1], tuple(step.x.shape), step.x.dtype))
        for promise, name in zip(promises[2 * i : 2 * i + 2], results, strict=False):
            if promise is not None:
                known[id(promise)] = name
        meet = "Meeting{word}" if i else "NoMeeting{}"
        calls.append(f"product<Step{i}>({', '.join(['held', meet, *rows, *results, *parameters])});\n")
    if barrier is not None:
        inputs.append(("barrier", barrier))
    names = tuple(name for name, _ in inputs), tuple(name for name, _, _ in outputs)
    structs = tuple(tuple(step.constants.items()) for step in steps)
    found = iter(
        _kernel(structs, *names, "".join(calls))(
            inputs=[array for _, array in inputs],
            template=[],
            grid=(blocks * THREADS, 1, 1),
            threadgroup=(THREADS, 1, 1),
            output_shapes=[shape for _, shape, _ in outputs],
            output_dtypes=[dtype for _, _, dtype in outputs],
        )
    )
    return [(next(found), next(found) if step.enters else None) for step in steps]


@cache
def _kernel(
    structs: tuple[tuple[tuple[str, Any], ...], ...], inputs: tuple[str, ...], outputs: tuple[str, ...], calls: str
) -> Any:
    header = [text("product.cuh")]
    for i, members in enumerate(structs):
        lines = [
            f"  using {name} = {value};" if isinstance(value, str) else f"  static constexpr int {name} = {int(value)};"
            for name, value in members
        ]
        header.append("\n".join([f"struct Step{i} {{", *lines, "};\n"]))
    sizes = ", ".join(f"Sizes<Step{i}>::HELD" for i in range(len(structs)))
    source = [f"__shared__ uint4 held[most({sizes})];\n", "const float* const nothing = nullptr;\n"]
    if "barrier" in inputs:
        source.append("unsigned* const word = const_cast<unsigned*>(barrier);\n")
    parts = "\n".join(header), "".join([*source, calls])
    digest = hashlib.sha256("".join([*parts, *inputs]).encode()).hexdigest()[:16]
    return build(f"product_{len(structs)}_{digest}", inputs, outputs, parts[1], parts[0])
