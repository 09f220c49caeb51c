"""How a CUDA source becomes a call. A kernel is known by its name and template arguments, so dtypes are among them."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx

from voicechat_mlx.nn.cuda.promise import Array, settled

SOURCES = Path(__file__).parent
THREADS = 256
SHARED_BYTES = 47 * 1024
"""Of the 48 KiB that a block may have: inputs, and a little for sums."""
LEAST_NUMBERS = 16
"""Of an array that kernels read: MLX keeps arrays of up to 8 bytes where the host sees them, tens of times farther."""
Template = list[tuple[str, bool | int | mx.Dtype]]

SIGNATURES = {
    "attend": (["qkv", "keys", "values", "count", "q_scale", "k_scale", "rates"], ["out"]),
    "add_norm": (["x", "y", "post", "pre"], ["normed"]),
    "mixture": (["x", "projected", "mus", "low_mat", "gumbel", "options"], ["mean", "log_std"]),
    "next_code": (
        ["residual", "scores", "codes", "found", "place", "previous", "book", "half_norms"],
        ["next_residual", "next_scores", "next_codes", "next_found"],
    ),
    "nearest_codes": (
        ["residual", "found", "books", "half_norms", "barrier"],
        ["next_found", "rest", "scores", "codes"],
    ),
    "rel_attention": (
        ["qkv", "key_tail", "value_tail", "positions", "u", "w", "seen"],
        ["out", "next_keys", "next_values"],
    ),
    "depthwise": (["tail", "x", "taps", "bias", "norm_weight", "norm_bias"], ["y", "next_tail"]),
    "subsample": (["before", "x", "taps", "bias"], ["y", "after"]),
    "inverse_stft": (["features", "held", "real", "matrix", "window"], ["samples", "next_held", "next_real"]),
    "mamba_frame": (
        ["projected", "tail", "taps", "bias", "decay", "skip", "dt_bias", "state"],
        ["y", "next_tail", "next_state"],
    ),
    "rnnt_frame": (
        [
            *("encoder_term", "prediction_term", "hiddens", "cells", "joint", "joint_bias"),
            *("embed", "matrices", "biases", "pred", "pred_bias"),
        ],
        ["pieces", "next_term", "next_hiddens", "next_cells"],
    ),
}
"""Each kernel's inputs and outputs, by the names that its source uses. A call may leave out what it does not need."""


@cache
def available() -> bool:
    """Whether arrays live on an NVIDIA GPU."""
    return bool(mx.cuda.is_available()) and mx.default_device().type == mx.DeviceType.gpu


@cache
def multiprocessors() -> int:
    """How many the GPU has; 0 where nobody says."""
    count, attribute = ctypes.c_int(0), 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    failed = driver.cuInit(0) or driver.cuDeviceGetAttribute(ctypes.byref(count), attribute, 0)
    return 0 if failed else count.value


@cache
def text(name: str) -> str:
    """A file beside this one."""
    return (SOURCES / name).read_text(encoding="utf-8")


def build(name: str, inputs: Sequence[str], outputs: Sequence[str], source: str, header: str = "") -> Any:
    """The callable that MLX makes of a source; it compiles at the first use of each template."""
    return mx.fast.cuda_kernel(
        name=name, input_names=inputs, output_names=outputs, source=source, header=text("common.cuh") + header
    )


@cache
def kernel(name: str, absent: tuple[str, ...] = ()) -> Any:
    """The kernel of a file, by its `SIGNATURES`.

    `absent` inputs and outputs are null pointers: every argument costs time at every launch.
    """
    inputs, outputs = ([each for each in names if each not in absent] for names in SIGNATURES[name])
    nothing = "".join(f"T* const {each} = nullptr;\n" for each in absent)
    return build("_without_".join((name, *absent)), inputs, outputs, nothing + text(f"{name}.cu"))


def run(
    name: str,
    inputs: Sequence[Array | None],
    template: Template,
    blocks: int,
    shapes: Sequence[tuple[int, ...] | None],
    dtypes: Sequence[mx.Dtype],
    threads: int = THREADS,
) -> list[mx.array]:
    """Launch a kernel: its outputs, of the given shapes and dtypes. What is None is left out."""
    names = [*SIGNATURES[name][0], *SIGNATURES[name][1]]
    absent = tuple(each for each, value in zip(names, [*inputs, *shapes], strict=True) if value is None)
    result: list[mx.array] = kernel(name, absent)(
        inputs=[settled(each) for each in inputs if each is not None],
        template=template,
        grid=(blocks * threads, 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=[shape for shape in shapes if shape is not None],
        output_dtypes=list(dtypes),
    )
    return result


@cache
def constants(*values: float | int) -> mx.array:
    """Numbers as an array, made once. See `LEAST_NUMBERS`."""
    array = mx.array([*values, *[type(values[0])()] * (LEAST_NUMBERS - len(values))])
    mx.eval(array)
    return array


def bits(value: float) -> int:
    """A float32 as the integer with the same bits, which a template can hold."""
    return int.from_bytes(struct.pack("<f", value), "little", signed=True)
