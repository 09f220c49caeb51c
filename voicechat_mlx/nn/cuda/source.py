"""The source of a launch of several steps, as they are added one after another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx

from voicechat_mlx.nn.cuda.launch import C_TYPES, Kernel, Signature, text
from voicechat_mlx.nn.cuda.part import Part
from voicechat_mlx.nn.cuda.promise import Array, Result, settled
from voicechat_mlx.nn.cuda.step import Step

ALIGNED = 64
"""Numbers of which each result inside a launch is a multiple, so that all of them can be read 16 bytes at a time."""
Link = Step | Part
Output = tuple[str, tuple[int, ...], mx.Dtype]


def name_of(step: int, result: int) -> str:
    """Of a result, in the kernel."""
    return f"out{step}_{result}"


class Source:
    """What a launch reads, writes and calls, as its steps are added."""

    def __init__(self) -> None:
        self.inputs: list[tuple[str, mx.array]] = []
        self._steps: list[Link] = []
        self._lines: list[str] = []
        self._outputs: list[Output] = []
        self._known: dict[int, str] = {}
        self._inner: dict[mx.Dtype, int] = {}
        """How many numbers."""

    @property
    def all_outputs(self) -> list[Output]:
        """Names, shapes and dtypes; what stays inside comes last."""
        return [*self._outputs, *((f"inner_{C_TYPES[dtype]}", (size,), dtype) for dtype, size in self._inner.items())]

    def add(self, step: Link, held: Sequence[bool]) -> list[bool]:
        """Which of the step's results are outputs: those that are there and held."""
        number = len(self._steps)
        self._steps.append(step)
        sources = [self._input(value, absent) for value, absent in step.arguments]
        targets, outside = [], []
        for i, (each, is_held) in enumerate(zip(step.results, held, strict=True)):
            targets.append("nullptr" if each is None else name_of(number, i))
            outside.append(each is not None and is_held)
            if each is not None:
                self._place(targets[-1], *each, is_held)
        arguments = ["held", "meeting" if number else "beginning", *sources, *targets]
        self._lines.append(f"{step.function}<Step{number}>({', '.join(arguments)});\n")
        return outside

    def kernel(self, signature: Signature, shared_bytes: int) -> Kernel:
        """All steps, one after another."""
        headers = tuple(dict.fromkeys(header for step in self._steps for header in step.headers))
        structs = tuple(tuple(step.constants.items()) for step in self._steps)
        name = f"{self._steps[0].function}_{len(self._steps)}"
        return _kernel(name, headers, structs, signature, "".join(self._lines), shared_bytes)

    def _input(self, value: Array | None, absent: str) -> str:
        if value is None:
            return absent
        if isinstance(value, Result):
            return value.name
        if id(value) not in self._known:
            self._known[id(value)] = f"in{len(self.inputs)}"
            self.inputs.append((self._known[id(value)], settled(value)))
        return self._known[id(value)]

    def _place(self, name: str, shape: tuple[int, ...], dtype: mx.Dtype, is_held: bool) -> None:
        if is_held:
            self._outputs.append((name, shape, dtype))
            return
        begin, kind = self._inner.get(dtype, 0), C_TYPES[dtype]
        self._inner[dtype] = begin + -(-math.prod(shape) // ALIGNED) * ALIGNED
        self._lines.append(f"{kind}* const {name} = inner_{kind} + {begin};\n")


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
