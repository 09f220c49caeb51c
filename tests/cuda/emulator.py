"""Runs the CUDA kernels on a CPU, so that they are tested where there is no GPU. Needs a C++ compiler.

Each use of a kernel becomes a small shared library: the kernel's own source behind `emulator.hpp`.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np

from voicechat_mlx.nn import cuda, packed
from voicechat_mlx.nn.cuda import chain, launch, step

HEADER = Path(__file__).with_name("emulator.hpp")
COMPILER = shutil.which("g++") or shutil.which("clang++")
OPTIONS = ("-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden")
"""Hidden, since libraries would share what has the same name in them."""
_ALIGNED = np.asarray(mx.zeros((64,))).ctypes.data % 16
"""Where MLX begins arrays on a CPU. On a GPU they begin at multiples of 256 bytes, and slices anywhere."""


Call = Callable[..., list[mx.array]]


@contextmanager
def pretended(call: Call, multiprocessors: int) -> Iterator[None]:
    """As if there were such an NVIDIA GPU, where `call` stands for `Kernel.__call__`."""
    with (
        mock.patch.object(launch.Kernel, "__call__", call),
        mock.patch.multiple(chain, available=lambda: True, multiprocessors=lambda: multiprocessors),
        mock.patch.object(step, "has_tensor_cores", lambda: True),
        mock.patch.object(cuda, "available", lambda: True),
        mock.patch.object(packed, "computes_here", lambda weight: False),
    ):
        yield


def unlaunched(
    inputs: Sequence[mx.array], shapes: Sequence[tuple[int, ...]], dtypes: Sequence[mx.Dtype]
) -> list[mx.array]:
    """Outputs that depend on the inputs, as a launch's would, where only the graph matters."""
    outputs = [mx.zeros(*kind) for kind in zip(shapes, dtypes, strict=True)]
    return list(mx.depends(outputs, list(inputs)))


def emulated(
    kernel: launch.Kernel,
    inputs: Sequence[mx.array],
    template: launch.Template,
    blocks: int,
    threads: int,
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[mx.Dtype],
    scalars: Sequence[int] = (),
) -> list[mx.array]:
    """What a launch on a GPU would give."""
    assert blocks > 0, f"{kernel.name}: MLX divides by the number of blocks"
    source = kernel.source([x.dtype for x in inputs], dtypes, template, threads, "kernel")
    library = _library(kernel, source)
    sources = [_to_numpy(x) for x in inputs]
    for key, x, array in zip(kernel.signature.inputs, inputs, sources, strict=True):
        aligned = x.nbytes < 16 or array.ctypes.data % 16 == _ALIGNED
        assert aligned or not re.search("int4[^,]|float4|product<", kernel.body), (
            f"{key} cannot be read 16 bytes at once"
        )
    targets = [_filled(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (*sources, *targets)]
    library.run(blocks, threads, *pointers, *scalars)
    return [_to_mlx(array, dtype) for array, dtype in zip(targets, dtypes, strict=True)]


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


@cache
def _library(kernel: launch.Kernel, source: str) -> ctypes.CDLL:
    inputs, outputs, scalars = kernel.signature
    pointers = [*inputs, *outputs]
    parameters = [*(f"void* {key}" for key in pointers), *(f"int {key}" for key in scalars)]
    arguments = [*(f"Any{{{key}}}" for key in pointers), *scalars]
    source = "\n".join(
        [
            "#define TOGETHER" if "words" in inputs else "",
            f"#define SHARED_BYTES {kernel.shared_bytes}",
            HEADER.read_text(encoding="utf-8"),
            source,
            "struct Any { void* place; template <typename T> operator T*() const { return static_cast<T*>(place); } };",
            f'extern "C" SHOWN void run(unsigned blocks, unsigned threads, {", ".join(parameters)}) {{',
            f"launch(blocks, threads, [=] {{ kernel({', '.join(arguments)}); }});",
            "}",
        ]
    )
    folder = Path(tempfile.gettempdir()) / "voicechat_mlx_emulator"
    folder.mkdir(exist_ok=True)
    target = folder / f"{kernel.name}_{hashlib.sha256(source.encode()).hexdigest()[:16]}.so"
    if not target.exists():
        made = target.with_suffix(f".{os.getpid()}")  # others may compile the same
        text = made.with_suffix(f".{os.getpid()}.cpp")
        text.write_text(source, encoding="utf-8")
        command = [str(COMPILER), *OPTIONS, str(text), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        made.replace(target)
    return ctypes.CDLL(str(target))
