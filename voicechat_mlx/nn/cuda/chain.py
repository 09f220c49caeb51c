"""Several products in one launch: every multiprocessor takes its share of each, and all wait for one another between.

On a GPU a frame is bound by what the host spends on each launch. Inside `chaining` products are recorded, not launched;
they run together as soon as somebody needs one of their results (`settled`). While the blocks wait for each other, the
weights of the next product are already on their way.

Blocks that wait for each other must run at the same time, so there are no more of them than the GPU has room for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
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
from voicechat_mlx.nn.cuda.promise import Array, Promise, settled
from voicechat_mlx.nn.cuda.step import Step

SPARED = 2
"""Multiprocessors left to what runs beside a chain, such as the transducer, for which all blocks would have to wait."""
GIVEN, LEAST_ASKED = 48 * 1024, 48_016
"""Bytes of shared memory that a block may have, and what a kernel must ask for before MLX lets it have more."""
SUM_BYTES = 1152
"""Of shared memory that a step has besides its inputs: what the warps of a tile add up, or less."""
LONGEST = 8
"""Products in a launch: a kernel of more takes long to compile, and saves little."""


class Chain:
    """Products that wait to be run."""

    def __init__(self) -> None:
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
        found = launch(steps, [promise for pair in results for promise in pair]) if steps else []
        for promises, arrays in zip(results, found, strict=True):
            for promise, array in zip(promises, arrays, strict=True):
                if promise is not None:
                    promise.array = array


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


def launch(steps: Sequence[Step], promises: Sequence[Promise | None] = ()) -> list[tuple[mx.array, mx.array | None]]:
    """Each step's result, and what entered its block where that is not x.

    `promises` of these results, in their order, may be inputs of later steps.
    """
    blocks = at_once() if len(steps) > 1 else steps[0].tiles
    if steps[0].on_tensor_cores:  # which prepare the inputs once for all tiles of a block
        blocks = min(blocks, 2 * at_once())
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
        targets = [f"out{i}", f"sum{i}" if step.enters else "nullptr"]
        outputs.append((targets[0], (*step.x.shape[:-1], step.outputs), step.x.dtype))
        if step.enters:
            outputs.append((targets[1], tuple(step.x.shape), step.x.dtype))
        for promise, name in zip(promises[2 * i : 2 * i + 2], targets, strict=False):
            if promise is not None:
                known[id(promise)] = name
        before = "meeting" if i else "beginning"
        kind = "tensor_product" if step.on_tensor_cores else "product"
        calls.append(f"{kind}<Step{i}>({', '.join(['held', before, *rows, *targets, *parameters])});\n")
    if len(steps) > 1:
        inputs.append(("words", take_words()))
        outputs.append(("next_words", (LEAST_NUMBERS,), mx.uint32))
    signature = Signature(tuple(name for name, _ in inputs), tuple(name for name, _, _ in outputs))
    structs = tuple(tuple(step.constants.items()) for step in steps)
    shapes, dtypes = [shape for _, shape, _ in outputs], [dtype for _, _, dtype in outputs]
    held, sums = max(step.held_bytes for step in steps), SUM_BYTES * (1 + len(steps))
    kernel = _kernel(structs, signature, "".join(calls), held if held + sums <= GIVEN else max(held, LEAST_ASKED))
    found = iter(kernel([array for _, array in inputs], (), blocks, THREADS, shapes, dtypes))
    results = [(next(found), next(found) if step.enters else None) for step in steps]
    if len(steps) > 1:
        leave_words(next(found))
    return results


@cache
def _kernel(
    structs: tuple[tuple[tuple[str, Any], ...], ...], signature: Signature, calls: str, shared_bytes: int
) -> Kernel:
    header = [text("product.cuh"), text("tensor_product.cuh")]
    for i, members in enumerate(structs):
        lines = [
            f"  using {name} = {value};" if isinstance(value, str) else f"  static constexpr int {name} = {int(value)};"
            for name, value in members
        ]
        header.append("\n".join([f"struct Step{i} {{", *lines, "};\n"]))
    source = ["DYNAMIC_SHARED(uint4, held);\nconst float* const nothing = nullptr;\nNoMeeting beginning;\n"]
    if "words" in signature.inputs:
        source.append("Meeting meeting{const_cast<unsigned*>(words)};\nclear(next_words);\n")
    return Kernel(f"product_{len(structs)}", signature, "".join([*source, calls]), "\n".join(header), shared_bytes)
