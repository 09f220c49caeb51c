"""Calls of the CUDA kernels. A kernel is known by its template arguments alone, so dtypes are among them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx

SOURCES = Path(__file__).parent
THREADS = 256
MOST_ROWS = 4
Template = list[tuple[str, bool | int | mx.Dtype]]

SIGNATURES = {
    "rows_matmul": (["x", "w"], ["out"]),
    "norm_rotate": (["qkv", "q_scale", "k_scale", "constants", "offset"], ["q", "k", "v"]),
    "decode_attention": (["q", "keys", "values", "offset"], ["out"]),
    "add_norm": (["x", "y", "post", "pre", "eps"], ["sum", "normed"]),
    "add_layer_norm": (["x", "y", "weight", "bias", "eps"], ["sum", "normed"]),
    "next_code": (
        ["residual", "scores", "codes", "found", "place", "previous", "book", "half_norms"],
        ["next_residual", "next_scores", "next_codes", "next_found"],
    ),
    "rel_attention": (
        ["q", "k", "v", "key_tail", "value_tail", "positions", "u", "w", "seen"],
        ["out", "next_keys", "next_values"],
    ),
    "conv_step": (["tail", "x", "taps", "bias"], ["y", "next_tail"]),
    "mamba_step": (["xbc", "dt", "z", "decay", "skip", "dt_bias", "state"], ["y", "next_state"]),
}


@cache
def available() -> bool:
    """Whether arrays live on an NVIDIA GPU."""
    return bool(mx.cuda.is_available()) and mx.default_device().type == mx.DeviceType.gpu


@cache
def _kernel(name: str) -> Any:
    inputs, outputs = SIGNATURES[name]
    return mx.fast.cuda_kernel(
        name=name,
        input_names=inputs,
        output_names=outputs,
        source=(SOURCES / f"{name}.cu").read_text(encoding="utf-8"),
        header=(SOURCES / "common.cuh").read_text(encoding="utf-8"),
    )


def _run(
    name: str,
    inputs: Sequence[mx.array],
    template: Template,
    blocks: int,
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[mx.Dtype],
) -> list[mx.array]:
    grid = (blocks * THREADS, 1, 1)
    result: list[mx.array] = _kernel(name)(
        inputs=list(inputs),
        template=template,
        grid=grid,
        threadgroup=(THREADS, 1, 1),
        output_shapes=list(shapes),
        output_dtypes=list(dtypes),
    )
    return result


def rows_matmul(x: mx.array, weight: mx.array) -> mx.array | None:
    """x (…, K) of at most 4 rows, weight (N, K) → (…, N); None where the shapes do not suit the kernel."""
    rows, width = x.size // x.shape[-1], x.shape[-1]
    if rows > MOST_ROWS or width % 8 or mx.float16 in (x.dtype, weight.dtype):
        return None
    outputs = weight.shape[0]
    template: Template = [("X", x.dtype), ("W", weight.dtype), ("R", rows)]
    shape = (*x.shape[:-1], outputs)
    return _run("rows_matmul", [x, weight], template, -(-outputs // 8), [shape], [x.dtype])[0]


def norm_rotate(
    qkv: mx.array,
    q_scale: mx.array,
    k_scale: mx.array,
    constants: mx.array,
    offset: mx.array,
    *,
    heads: int,
    kv_heads: int,
) -> tuple[mx.array, mx.array, mx.array]:
    """qkv (B, 1, (H + 2·Hk)·D), constants (D / 2 + 1,) → q (B, H, 1, D), k and v (B, Hk, 1, D)."""
    rows, head_dim = qkv.shape[0], q_scale.shape[0]
    template: Template = [("T", qkv.dtype), ("H", heads), ("HK", kv_heads), ("D", head_dim)]
    kv_shape = (rows, kv_heads, 1, head_dim)
    q, k, v = _run(
        "norm_rotate",
        [qkv, q_scale, k_scale, constants, offset],
        template,
        -(-rows * (heads + 2 * kv_heads) // 8),
        [(rows, heads, 1, head_dim), kv_shape, kv_shape],
        [qkv.dtype] * 3,
    )
    return q, k, v


def decode_attention(q: mx.array, keys: mx.array, values: mx.array, offset: mx.array) -> mx.array:
    """Scaled q (B, H, 1, D) over buffers (B, Hk, C, D) that hold min(offset + 1, C) frames → (B, 1, H·D)."""
    rows, heads, _, head_dim = q.shape
    template: Template = [("T", q.dtype), ("D", head_dim)]
    inputs = [q, keys, values, offset]
    return _run("decode_attention", inputs, template, rows * heads, [(rows, 1, heads * head_dim)], [q.dtype])[0]


@cache
def _constant(value: float | int) -> mx.array:
    """One number as an array (1,), made once."""
    array = mx.array([value])
    mx.eval(array)
    return array


def add_norm(
    x: mx.array, y: mx.array, post: mx.array | None, pre: mx.array | None, eps: float
) -> tuple[mx.array, mx.array]:
    """x, y (…, width) → x + norm(y) · post (without `post`: x + y), and the norm of that · pre (without: the same)."""
    width = x.shape[-1]
    template: Template = [
        ("T", x.dtype),
        ("WIDTH", width),
        ("POST", post is not None),
        ("NEXT", pre is not None),
    ]
    inputs = [x, y, x if post is None else post, x if pre is None else pre, _constant(eps)]
    shapes = [x.shape, x.shape if pre is not None else (1,)]
    total, normed = _run("add_norm", inputs, template, x.size // width, shapes, [x.dtype] * 2)
    return total, normed if pre is not None else total


def add_layer_norm(
    x: mx.array, y: mx.array | None, weight: mx.array, bias: mx.array, eps: float, *, half: bool, silu: bool
) -> tuple[mx.array, mx.array]:
    """x, y (…, width) → x + y, or x + ½ y, and its layer norm, through SiLU if asked; without `y` the norm of x."""
    width = x.shape[-1]
    template: Template = [
        ("T", x.dtype),
        ("WIDTH", width),
        ("ADD", y is not None),
        ("HALF", half),
        ("SILU", silu),
    ]
    inputs = [x, x if y is None else y, weight, bias, _constant(eps)]
    shapes = [(1,) if y is None else x.shape, x.shape]
    total, normed = _run("add_layer_norm", inputs, template, x.size // width, shapes, [x.dtype] * 2)
    return (x if y is None else total), normed


def nearest_codes(
    residual: mx.array, books: Sequence[mx.array], half_norms: Sequence[mx.array], found: mx.array, start: int
) -> tuple[mx.array, mx.array]:
    """Levels start, start + 1, … of residual quantisation.

    residual (latent,), books (K, latent), ½‖rows‖² (K,), found (Q,) int32 → `found` with these levels' codes, and what
    is left of the residual (latent,).
    """
    latent, blocks, last = residual.shape[0], -(-books[0].shape[0] // 8), len(books)
    state = [residual.astype(mx.float32), _constant(0.0), _constant(0), found]
    for level in range(last + 1):
        book, norms = books[min(level, last - 1)], half_norms[min(level, last - 1)]
        previous = books[max(level - 1, 0)]
        template: Template = [("B", book.dtype), ("LATENT", latent), ("FIRST", level == 0), ("LAST", level == last)]
        state = _run(
            "next_code",
            [*state, _constant(start + level - 1), previous, book, norms],
            template,
            1 if level == last else blocks,
            [(latent,), (blocks,), (blocks,), found.shape],
            [mx.float32, mx.float32, mx.int32, mx.int32],
        )
    return state[3], state[0].astype(residual.dtype)


def rel_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    tails: tuple[mx.array, mx.array],
    positions: mx.array,
    biases: tuple[mx.array, mx.array],
    seen: mx.array,
) -> tuple[mx.array, mx.array, mx.array]:
    """q, k, v (1, 1, d), tails (1, L, d), positions (H, L + 1, D), biases (H, D), seen () → (1, 1, d), moved tails."""
    heads, head_dim = biases[0].shape
    template: Template = [("T", q.dtype), ("D", head_dim)]
    inputs = [q, k, v, *tails, positions, *biases, seen]
    shapes = [q.shape, tails[0].shape, tails[1].shape]
    out, keys, values = _run("rel_attention", inputs, template, heads, shapes, [q.dtype] * 3)
    return out, keys, values


def conv_step(
    tail: mx.array, x: mx.array, taps: mx.array, bias: mx.array | None, *, gated: bool, silu: bool
) -> tuple[mx.array, mx.array]:
    """tail (1, K - 1, C), x (1, 1, C) or gated (1, 1, 2C), taps (K, C), bias (C,) → y (1, 1, C) and the moved tail."""
    kernel_size, channels = taps.shape
    template: Template = [
        ("T", x.dtype),
        ("K", kernel_size),
        ("BIAS", bias is not None),
        ("GATED", gated),
        ("SILU", silu),
    ]
    inputs = [tail, x, taps, taps if bias is None else bias]
    shapes = [(1, 1, channels), tail.shape]
    y, moved = _run("conv_step", inputs, template, -(-channels // THREADS), shapes, [x.dtype] * 2)
    return y, moved


def mamba_step(
    xbc: mx.array,
    dt: mx.array,
    z: mx.array,
    decay: mx.array,
    skip: mx.array,
    dt_bias: mx.array,
    state: mx.array,
    *,
    groups: int,
) -> tuple[mx.array, mx.array]:
    """xbc (1, 1, conv width) after its convolution, dt (1, 1, H), z (1, 1, width), state (1, H, P, N) float32.

    → y · silu(z) (1, 1, width) and the next state.
    """
    _, heads, head_dim, state_size = state.shape
    template: Template = [
        ("T", xbc.dtype),
        ("H", heads),
        ("HEAD_DIM", head_dim),
        ("STATE", state_size),
        ("GROUPS", groups),
    ]
    inputs = [xbc, dt, z, decay, skip, dt_bias, state]
    y, moved = _run("mamba_step", inputs, template, heads, [z.shape, state.shape], [z.dtype, mx.float32])
    return y, moved
