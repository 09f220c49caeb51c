"""How a CUDA source becomes a call. A kernel is known by its name and template arguments, so dtypes are among them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx

from voicechat_mlx.nn.cuda.compiler import architecture, machine_code
from voicechat_mlx.nn.cuda.driver import MAJOR, MULTIPROCESSORS, attribute
from voicechat_mlx.nn.cuda.fatbin import packed
from voicechat_mlx.nn.cuda.promise import Array, settled

SOURCES = Path(__file__).parent
THREADS = 256
SHARED_BYTES = 47 * 1024
"""Of the 48 KiB that a block may have: inputs, and a little for sums."""
INPUT_BYTES = 40 * 1024
"""Of `SHARED_BYTES`, for the inputs; the rest is for sums."""
LEAST_NUMBERS = 16
"""Of an array that kernels read: MLX keeps arrays of up to 8 bytes where the host sees them, tens of times farther."""
Template = Sequence[tuple[str, bool | int | mx.Dtype]]
C_TYPES = {
    mx.float32: "float",
    mx.bfloat16: "bfloat16",
    mx.int32: "int",
    mx.uint32: "unsigned",
    mx.int64: "long long",
    mx.bool_: "bool",
}


class Signature(NamedTuple):
    """A kernel's parameters in their order, by the names that its source uses."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scalars: tuple[str, ...] = ()
    """Integers that may change from call to call; what never does is a template argument."""


SIGNATURES = {
    "attend": Signature(("qkv", "keys", "values", "count", "q_scale", "k_scale", "rates"), ("out",), ("C",)),
    "add_norm": Signature(("x", "y", "post", "pre"), ("normed",)),
    "mixture": Signature(("x", "projected", "mus", "low_mat", "gumbel", "options"), ("mean", "log_std")),
    "nearest_codes": Signature(
        ("residual", "found", "books", "half_norms", "words"),
        ("next_found", "rest", "scores", "codes", "next_words"),
    ),
    "subsample": Signature(("before", "x", "taps", "bias"), ("y", "after"), ("earlier", "arriving")),
    "inverse_stft": Signature(
        ("features", "held", "real", "matrix", "window"), ("samples", "next_held", "next_real"), ("frames",)
    ),
    "rnnt_frame": Signature(
        (
            *("encoder_term", "prediction_term", "hiddens", "cells", "joint", "joint_bias"),
            *("embed", "matrices", "biases", "pred", "pred_bias"),
        ),
        ("pieces", "next_term", "next_hiddens", "next_cells"),
    ),
}
"""A call may leave out inputs and outputs that it does not need."""


@cache
def available() -> bool:
    """Whether arrays live on an NVIDIA GPU, the first one: kernels are made for it."""
    return bool(mx.cuda.is_available()) and mx.default_device() == mx.Device(mx.gpu, 0)


def has_tensor_cores() -> bool:
    """Whether the GPU multiplies matrices of bfloat16."""
    return attribute(MAJOR) >= 8


def multiprocessors() -> int:
    """How many the GPU has."""
    return attribute(MULTIPROCESSORS)


@cache
def text(name: str) -> str:
    """A file beside this one."""
    return (SOURCES / name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Kernel:
    """A source that becomes machine code for each template, choice of dtypes and number of threads."""

    name: str
    signature: Signature
    body: str
    header: str = ""
    shared_bytes: int = 0
    """Of memory for `DYNAMIC_SHARED`."""

    def __call__(
        self,
        inputs: Sequence[mx.array],
        template: Template,
        blocks: int,
        threads: int,
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[mx.Dtype],
        scalars: Sequence[int] = (),
    ) -> list[mx.array]:
        """Launch it: its outputs, of the given shapes and dtypes."""
        of = tuple(x.dtype for x in inputs), tuple(dtypes), tuple(template), threads
        name, code = _machine_code(self, *of)
        found: list[mx.array] = mx.fast.precompiled_cuda_kernel(
            name=name,
            compiled_source=code,
            inputs=list(inputs),
            output_shapes=list(shapes),
            output_dtypes=list(dtypes),
            scalars=list(scalars),
            grid=(blocks * threads, 1, 1),
            threadgroup=(threads, 1, 1),
            shared_memory=self.shared_bytes,
            ensure_row_contiguous=True,
        )
        return found

    def source(
        self, inputs: Sequence[mx.Dtype], outputs: Sequence[mx.Dtype], template: Template, threads: int, name: str
    ) -> str:
        """The whole translation unit, whose kernel is called `name`."""
        parameters = [
            *(f"const {C_TYPES[dtype]}* {key}" for key, dtype in zip(self.signature.inputs, inputs, strict=True)),
            *(f"{C_TYPES[dtype]}* {key}" for key, dtype in zip(self.signature.outputs, outputs, strict=True)),
            *(f"const int {key}" for key in self.signature.scalars),
        ]
        head = f'extern "C" __global__ void __launch_bounds__({threads}) {name}({", ".join(parameters)})'
        return "\n".join([text("common.cuh"), self.header, head + " {", *map(_declared, template), self.body, "}\n"])


def _declared(constant: tuple[str, bool | int | mx.Dtype]) -> str:
    key, value = constant
    if isinstance(value, mx.Dtype):
        return f"using {key} = {C_TYPES[value]};"
    return f"constexpr {'bool' if isinstance(value, bool) else 'int'} {key} = {int(value)};"


@cache
def _machine_code(
    kernel: Kernel,
    inputs: tuple[mx.Dtype, ...],
    outputs: tuple[mx.Dtype, ...],
    template: tuple[tuple[str, bool | int | mx.Dtype], ...],
    threads: int,
) -> tuple[str, bytes]:
    """A name that no other kernel has, and the module."""
    parts = inputs, outputs, template, threads
    digest = hashlib.sha256(kernel.source(*parts, kernel.name).encode()).hexdigest()[:16]
    name = f"{kernel.name}_{digest}"
    return name, packed(machine_code(name, kernel.source(*parts, name)), architecture())


@cache
def kernel(name: str, absent: tuple[str, ...] = ()) -> Kernel:
    """The kernel of a file, by its `SIGNATURES`.

    `absent` inputs and outputs are null pointers: every argument costs time at every launch.
    """
    whole = SIGNATURES[name]
    inputs, outputs = (tuple(each for each in names if each not in absent) for names in (whole.inputs, whole.outputs))
    nothing = "".join(f"T* const {each} = nullptr;\n" for each in absent)
    return Kernel(name, Signature(inputs, outputs, whole.scalars), nothing + text(f"{name}.cu"))


def run(
    name: str,
    inputs: Sequence[Array | None],
    template: Template,
    blocks: int,
    shapes: Sequence[tuple[int, ...] | None],
    dtypes: Sequence[mx.Dtype],
    *,
    threads: int = THREADS,
    scalars: Sequence[int] = (),
) -> list[mx.array]:
    """Launch a kernel: its outputs, of the given shapes and dtypes. What is None is left out."""
    names = (*SIGNATURES[name].inputs, *SIGNATURES[name].outputs)
    absent = tuple(each for each, value in zip(names, [*inputs, *shapes], strict=True) if value is None)
    present = [settled(each) for each in inputs if each is not None]
    kept = [(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True) if shape is not None]
    return kernel(name, absent)(
        present, template, blocks, threads, [shape for shape, _ in kept], [dtype for _, dtype in kept], scalars
    )


@cache
def constants(*values: float | int) -> mx.array:
    """Numbers as an array, made once. See `LEAST_NUMBERS`."""
    array = mx.array([*values, *[type(values[0])()] * (LEAST_NUMBERS - len(values))])
    mx.eval(array)
    return array


def bits(value: float) -> int:
    """A float32 as the integer with the same bits, which a template can hold."""
    return int.from_bytes(struct.pack("<f", value), "little", signed=True)
