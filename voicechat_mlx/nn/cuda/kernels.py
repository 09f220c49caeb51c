"""Calls of the kernels that belong to one kind of layer each; `product` has a file of its own."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx

from voicechat_mlx.nn.cuda.chain import at_once, launch, take
from voicechat_mlx.nn.cuda.later import as_input
from voicechat_mlx.nn.cuda.launch import LEAST_NUMBERS, THREADS, Template, bits, constants, run
from voicechat_mlx.nn.cuda.meeting import leave_words, take_words
from voicechat_mlx.nn.cuda.part import Part
from voicechat_mlx.nn.cuda.step import SUM_BYTES

LARGE_BLOCK = 1024
"""Threads where few blocks do all the work."""


def attend(
    qkv: mx.array,
    keys: mx.array,
    values: mx.array,
    count: mx.array,
    *,
    heads: int,
    scale: float,
    keeps: bool,
    rotation: tuple[mx.array, mx.array, mx.array, float] | None = None,
) -> mx.array:
    """qkv (B, 1, (H + 2·Hk)·D), buffers (B, Hk, C, D), frames done in `count[0]` → (B, 1, H·D).

    Unusual: the buffers themselves receive the new frame, at its position modulo C; whoever shares them sees it. With
    `keeps`, the first `count[1]` positions stay and only the others move round.
    `rotation`: scales of q and k (D,), rotation rates (D / 2,) and the epsilon of both norms.
    """
    rows, kv_heads, _, head_dim = keys.shape
    q_scale, k_scale, rates, eps = rotation or (None, None, None, 0.0)
    template: Template = [
        ("T", qkv.dtype),
        ("H", heads),
        ("HK", kv_heads),
        ("D", head_dim),
        ("ROTATE", rotation is not None),
        ("KEEPS", keeps),
        ("EPS", bits(eps)),
        ("SCALE", bits(scale)),
    ]
    inputs = [qkv, keys, values, count, q_scale, k_scale, rates]
    shape = (rows, 1, heads * head_dim)
    found = run(
        "attend", inputs, template, rows * heads, [shape], [qkv.dtype], threads=LARGE_BLOCK, scalars=[keys.shape[2]]
    )
    return found[0]


def add_norm(x: mx.array, y: mx.array, post: mx.array, pre: mx.array, eps: float) -> mx.array:
    """x, y (…, width) → norm(x + norm(y) · post) · pre."""
    width = x.shape[-1]
    template: Template = [("T", x.dtype), ("WIDTH", width), ("EPS", bits(eps))]
    inputs = [x, y, post, pre]
    return run("add_norm", inputs, template, x.size // width, [x.shape], [x.dtype])[0]


def mixture(
    x: mx.array,
    projected: mx.array,
    mus: mx.array,
    low_mat: mx.array,
    gumbel: mx.array,
    top_p: float,
    guidance: float,
    least: float,
) -> tuple[mx.array, mx.array]:
    """x (2, hidden), projected (2, C + latent + 1), mus (C·rank, hidden), low_mat (C, latent, rank), gumbel (C,).

    → the drawn component's mean (latent,) and its log scale (1,), at least `least`; float32.
    """
    components, latent, rank = low_mat.shape
    template: Template = [
        ("T", x.dtype),
        ("W", mus.dtype),
        ("HIDDEN", x.shape[-1]),
        ("COMPONENTS", components),
        ("LATENT", latent),
        ("RANK", rank),
    ]
    inputs = [x, projected, mus, low_mat, gumbel, constants(top_p, guidance, least)]
    mean, log_std = run("mixture", inputs, template, 1, [(latent,), (1,)], [mx.float32] * 2, threads=LARGE_BLOCK)
    return mean, log_std


def nearest_codes(
    residual: mx.array, books: mx.array, half_norms: mx.array, found: mx.array, levels: range
) -> tuple[mx.array, mx.array]:
    """These levels of residual quantisation, by all books (Q, K, latent) and ½‖rows‖² (Q, K).

    residual (latent,), float32; found (Q,), int32 → `found` with these levels' codes, and what is left of the residual.
    """
    count, size, latent = books.shape
    blocks = min(at_once(), -(-size // (THREADS // 32)))
    template: Template = [
        ("B", books.dtype),
        ("LEVELS", count),
        ("CODES", size),
        ("LATENT", latent),
        ("START", levels.start),
        ("COUNT", len(levels)),
    ]
    inputs = [residual, found, books, half_norms, take_words()]
    shapes = [found.shape, (latent,), (2 * blocks,), (2 * blocks,), (LEAST_NUMBERS,)]
    dtypes = [mx.int32, mx.float32, mx.float32, mx.int32, mx.uint32]
    codes, rest, _, _, words = run("nearest_codes", inputs, template, blocks, shapes, dtypes)
    leave_words(words)
    return codes, rest


def rel_attention(
    qkv: mx.array,
    tails: tuple[mx.array, mx.array],
    positions: mx.array,
    biases: tuple[mx.array, mx.array],
    seen: mx.array,
) -> list[Any]:
    """qkv (1, 1, 3d), tails (1, L, d), positions (H, L + 1, D), biases (H, D) → (1, 1, d), moved tails.

    Of the tails the last `seen[0]` frames are real. Here, in `depthwise` and in `mamba_frame` the results are promises
    while a chain is recorded.
    """
    heads, head_dim = biases[0].shape
    _, left, width = tails[0].shape
    template: dict[str, int | bool | mx.Dtype] = {"D": head_dim, "LEFT": left, "WIDTH": width}
    inputs = (as_input(qkv), *tails, positions, *biases, seen)
    outputs = tuple((shape, qkv.dtype) for shape in [(1, 1, width), tails[0].shape, tails[1].shape])
    means = (THREADS // 32) * (head_dim + 2) * 4
    return take(Part("rel_attention", template, inputs, outputs, tiles=heads, sum_bytes=means))


def depthwise(
    tail: mx.array,
    x: mx.array,
    taps: mx.array,
    bias: mx.array | None,
    *,
    silu: bool,
    norm: tuple[mx.array, mx.array, float] | None = None,
) -> list[Any]:
    """tail (1, K - 1, C), x (1, T, C), taps (K, C), bias (C,) → y (1, T, C), normed if asked, and the moved tail.

    `norm`: weight and bias (C,), and epsilon. More than one step is a launch of its own.
    """
    kernel_size, channels = taps.shape
    weight, norm_bias, eps = norm or (None, None, 0.0)
    steps, shares = x.shape[1], 1 if norm else -(-channels // THREADS)
    template: dict[str, int | bool | mx.Dtype] = {
        "K": kernel_size,
        "C": channels,
        "ALONE": steps > 1,
        "BIAS": bias is not None,
        "SILU": silu,
        "NORM": norm is not None,
        "EPS": bits(eps),
    }
    inputs = (as_input(x), tail, taps, bias, weight, norm_bias)
    outputs = ((tuple(x.shape), x.dtype), (tuple(tail.shape), x.dtype))
    part = Part("depthwise", template, inputs, outputs, tiles=steps * shares, sum_bytes=SUM_BYTES)
    return take(part) if steps == 1 else launch([part])[0]


def subsample(before: mx.array, x: mx.array, taps: mx.array, bias: mx.array) -> tuple[mx.array, mx.array]:
    """Earlier rows (1, E, bins, C or 1), x (1, T, bins, …) with E + T ≥ 3, taps (9, C), bias (C,), all float32.

    → (1, O, bins // 2 + 1, C) with O = (E + T - 3) // 2 + 1, and the rows from 2·O on, which the next output needs.
    """
    rows, bins, width = before.shape[1] + x.shape[1], *x.shape[2:]
    outputs, channels = (rows - 3) // 2 + 1, taps.shape[1]
    template: Template = [("C", channels), ("BINS", bins), ("SHARED", width == 1)]
    shape = (1, outputs, bins // 2 + 1, channels)
    blocks = -(-outputs * shape[2] * channels // THREADS)
    shapes = [shape, (1, rows - 2 * outputs, bins, width)]
    scalars = [before.shape[1], x.shape[1]]
    y, after = run("subsample", [before, x, taps, bias], template, blocks, shapes, [mx.float32] * 2, scalars=scalars)
    return y, after


def inverse_stft(
    features: mx.array,
    held: mx.array,
    real: mx.array,
    matrix: mx.array,
    window: mx.array,
    *,
    hop_length: int,
    most: float,
) -> tuple[mx.array, mx.array, mx.array]:
    """Features (1, T, 2·bins), frames held back (1, N / hop - 1, N) and which of them are real, matrix (2·bins, N).

    → samples (1, hop·T), and what is held back for the next call. `most` bounds the magnitude.
    """
    n_fft, count = window.shape[0], features.shape[1] * hop_length
    template: Template = [
        ("N", n_fft),
        ("HOP", hop_length),
        ("BINS", matrix.shape[0] // 2),
        ("MOST", bits(most)),
        ("LOG_MOST", bits(math.log(most))),
    ]
    inputs = [features, held, real, matrix, window]
    shapes = [(1, count), held.shape, real.shape]
    blocks, dtypes = -(-count // THREADS), [mx.float32] * 3
    found = run("inverse_stft", inputs, template, blocks, shapes, dtypes, scalars=[features.shape[1]])
    return found[0], found[1], found[2]


def mamba_frame(
    projected: mx.array,
    tail: mx.array,
    taps: mx.array,
    bias: mx.array,
    decay: mx.array,
    skip: mx.array,
    dt_bias: mx.array,
    state: mx.array,
    *,
    groups: int,
) -> list[Any]:
    """projected (1, 1, z | x, B, C | dt), the convolution's tail (1, K - 1, C), taps (K, C), bias; state (1, H, P, N).

    → y · silu(z) (1, 1, H·P), the moved tail and the next state, which is float32.
    """
    _, heads, head_dim, state_size = state.shape
    template: dict[str, int | bool | mx.Dtype] = {
        "H": heads,
        "HEAD_DIM": head_dim,
        "STATE": state_size,
        "GROUPS": groups,
        "TAPS": taps.shape[0],
    }
    inputs = (as_input(projected), tail, taps, bias, decay, skip, dt_bias, state)
    gated = (1, 1, heads * head_dim), projected.dtype
    outputs = (gated, (tuple(tail.shape), tail.dtype), (tuple(state.shape), mx.float32))
    shared = (head_dim + 2 * state_size) * 4
    return take(Part("mamba_frame", template, inputs, outputs, tiles=heads, sum_bytes=shared, leads=True))


def rnnt_frame(
    encoder_term: mx.array,
    prediction_term: mx.array,
    state: tuple[mx.array, mx.array],
    joint: tuple[mx.array, mx.array],
    embed: mx.array,
    lstm: tuple[mx.array, mx.array],
    pred: tuple[mx.array, mx.array],
    *,
    most: int,
) -> tuple[mx.array, mx.array, tuple[mx.array, mx.array]]:
    """Both terms (1, J); hidden and cell state (layers, 1, P) → pieces (most,), the next term, the next state.

    Weights and biases: joint (V + 1, J), embed (≥ V, P), LSTM (layers, 4P, 2P), pred (J, P). All float32.
    """
    layers, _, width = state[0].shape
    template: Template = [
        ("LAYERS", layers),
        ("P", width),
        ("J", encoder_term.shape[-1]),
        ("PIECES", joint[0].shape[0] - 1),
        ("MOST", most),
    ]
    inputs = [encoder_term, prediction_term, *state, *joint, embed, *lstm, *pred]
    shapes = [(most,), prediction_term.shape, state[0].shape, state[1].shape]
    dtypes = [mx.uint32, mx.float32, mx.float32, mx.float32]
    pieces, term, hidden, cell = run("rnnt_frame", inputs, template, 1, shapes, dtypes, threads=LARGE_BLOCK)
    return pieces, term, (hidden, cell)
