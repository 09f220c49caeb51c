"""Runs the CUDA kernels on a CPU, so that they are tested where there is no GPU. Needs a C++ compiler.

Each use of a kernel becomes a small shared library: the kernel's own source behind `emulator.hpp`.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np

from voicechat_mlx.nn import cuda, packed
from voicechat_mlx.nn.cuda import chain, launch

HEADER = Path(__file__).with_name("emulator.hpp")
COMPILER = shutil.which("g++") or shutil.which("clang++")
OPTIONS = ("-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden")
"""Hidden, since libraries would share what has the same name in them."""
C_TYPES = {
    mx.float32: "float",
    mx.bfloat16: "bfloat16",
    mx.int32: "int",
    mx.uint32: "unsigned",
    mx.bool_: "bool",
    mx.int64: "long long",
}
Template = list[tuple[str, bool | int | mx.Dtype]]


@contextmanager
def pretended(build: Callable[..., Any], multiprocessors: int) -> Iterator[None]:
    """As if there were such an NVIDIA GPU, for which `build` makes the kernels."""
    with (
        mock.patch.multiple(launch, build=build),
        mock.patch.multiple(chain, build=build, available=lambda: True, multiprocessors=lambda: multiprocessors),
        mock.patch.object(cuda, "available", lambda: True),
        mock.patch.object(packed, "computes_here", lambda weight: False),
    ):
        _forget_kernels()
        yield
    _forget_kernels()


def _forget_kernels() -> None:
    launch.kernel.cache_clear()
    chain._kernel.cache_clear()


def emulated(name: str, inputs: Sequence[str], outputs: Sequence[str], source: str, header: str = "") -> Any:
    """A stand-in for `launch.build` with the same call."""
    parts = name, tuple(inputs), tuple(outputs), source, launch.text("common.cuh") + header

    def call(
        *,
        inputs: Sequence[mx.array],
        template: Template,
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        output_shapes: Sequence[tuple[int, ...]],
        output_dtypes: Sequence[mx.Dtype],
    ) -> list[mx.array]:
        library = _library(parts, [x.dtype for x in inputs], template, output_dtypes)
        sources = [_to_numpy(x) for x in inputs]
        targets = [_filled(shape, dtype) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)]
        shapes = [np.array(x.shape or (1,), np.int32) for x in inputs]
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (*sources, *targets, *shapes)]
        library.run(grid[0] // threadgroup[0], threadgroup[0], *pointers)
        return [_to_mlx(array, dtype) for array, dtype in zip(targets, output_dtypes, strict=True)]

    return call


def _to_numpy(x: mx.array) -> np.ndarray[Any, Any]:
    """The array's own memory, so that kernels may write there; a copy in bfloat16, which NumPy lacks."""
    mx.eval(x)
    return np.ascontiguousarray(np.asarray(x.view(mx.uint16) if x.dtype == mx.bfloat16 else x))


def _to_mlx(array: np.ndarray[Any, Any], dtype: mx.Dtype) -> mx.array:
    return mx.array(array).view(mx.bfloat16) if dtype == mx.bfloat16 else mx.array(array)


def _filled(shape: tuple[int, ...], dtype: mx.Dtype) -> np.ndarray[Any, Any]:
    """Memory that shows where a kernel wrote nothing: NaN, or a large number."""
    if dtype == mx.float32:
        return np.full(shape, np.nan, np.float32)
    if dtype == mx.bfloat16:
        return np.full(shape, 0x7FC0, np.uint16)
    return np.full(shape, 123456789, np.uint32 if dtype == mx.uint32 else np.int32)


def _library(
    parts: tuple[str, tuple[str, ...], tuple[str, ...], str, str],
    dtypes: Sequence[mx.Dtype],
    template: Template,
    output_dtypes: Sequence[mx.Dtype],
) -> ctypes.CDLL:
    name, inputs, outputs, body, header = parts
    parameters, constants = [], []
    for key, value in template:
        if isinstance(value, mx.Dtype):
            constants.append(f"using {key} = {C_TYPES[value]};")
        else:
            constants.append(f"constexpr {'bool' if isinstance(value, bool) else 'int'} {key} = {int(value)};")
    for key, dtype in zip(inputs, dtypes, strict=True):
        parameters.append(f"const {C_TYPES[dtype]}* {key}")
    for key, dtype in zip(outputs, output_dtypes, strict=True):
        parameters.append(f"{C_TYPES[dtype]}* {key}")
    parameters += [f"const int* {key}_shape" for key in inputs]
    source = "\n".join(
        [
            "#define TOGETHER" if "barrier" in inputs else "",
            HEADER.read_text(encoding="utf-8"),
            header,
            f'extern "C" SHOWN void run(unsigned blocks, unsigned threads, {", ".join(parameters)}) {{',
            *constants,
            "launch(blocks, threads, [=] {",
            body,
            "});}",
        ]
    )
    folder = Path(tempfile.gettempdir()) / "voicechat_mlx_emulator"
    folder.mkdir(exist_ok=True)
    target = folder / f"{name}_{hashlib.sha256(source.encode()).hexdigest()[:16]}.so"
    if not target.exists():
        made = target.with_suffix(f".{os.getpid()}")  # others may compile the same
        text = made.with_suffix(f".{os.getpid()}.cpp")
        text.write_text(source, encoding="utf-8")
        command = [str(COMPILER), *OPTIONS, str(text), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        made.replace(target)
    return ctypes.CDLL(str(target))
