"""Relative attention over a sliding window, against the equations of the specification written out in NumPy."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tests.models import normal, randomised, weights_of
from voicechat_mlx.nn.cache import end_step
from voicechat_mlx.perception.rel_attention import RelPosMultiHeadAttention, shear, sinusoids

WIDTH, HEADS = 12, 3
CLOSE = {"rtol": 2e-5, "atol": 2e-5}
"""float32 against float64, sums of a few dozen products."""


def rel_shift(x: np.ndarray) -> np.ndarray:
    """(H, L, P) → the same: pad the last axis left by one, view as (H, P + 1, L), drop the first row, view back."""
    heads, length, positions = x.shape
    padded = np.pad(x, [(0, 0), (0, 0), (1, 0)]).reshape(heads, positions + 1, length)
    return padded[:, 1:].reshape(heads, length, positions)


def table(length: int) -> np.ndarray:
    """Positions length - 1 … -(length - 1), sine in even columns, cosine in odd ones."""
    positions = np.arange(length - 1, -length, -1)[:, None]
    angles = positions / 10000 ** (np.arange(0, WIDTH, 2) / WIDTH)
    values = np.zeros((2 * length - 1, WIDTH))
    values[:, 0::2], values[:, 1::2] = np.sin(angles), np.cos(angles)
    return values


def by_hand(module: RelPosMultiHeadAttention, x: np.ndarray, left: int) -> np.ndarray:
    """(L, WIDTH) → (L, WIDTH): the whole sequence at once, all 2 L - 1 positions, an additive mask of -1e30."""
    weights, length, size = weights_of(module), len(x), WIDTH // HEADS

    def heads(name: str, rows: np.ndarray) -> np.ndarray:
        return (rows @ weights[f"{name}.weight"].T).reshape(-1, HEADS, size).transpose(1, 0, 2)

    q, k, v = (heads(f"linear_{letter}", x) for letter in "qkv")
    p = heads("linear_pos", table(length))
    with_u, with_v = q + weights["pos_bias_u"][:, None], q + weights["pos_bias_v"][:, None]
    scores = with_u @ k.swapaxes(1, 2) + rel_shift(with_v @ p.swapaxes(1, 2))[..., :length]
    i, j = np.arange(length)[:, None], np.arange(length)[None]
    scores = scores * size**-0.5 + np.where((j <= i) & (j >= i - left), 0, -1e30)
    attention = np.exp(scores - scores.max(axis=-1, keepdims=True))
    attention /= attention.sum(axis=-1, keepdims=True)
    return (attention @ v).transpose(1, 0, 2).reshape(length, WIDTH) @ weights["linear_out.weight"].T


def make(left: int) -> RelPosMultiHeadAttention:
    return randomised(RelPosMultiHeadAttention(WIDTH, HEADS, left), std=0.5)


def test_shear_equals_hand_indexing() -> None:
    """Row i moves right by i places: column c of query i belongs to key i + c."""
    counted = mx.arange(15).reshape(1, 1, 3, 5)
    expected = [
        [0, 1, 2, 3, 4, 0, 0],
        [0, 5, 6, 7, 8, 9, 0],
        [0, 0, 10, 11, 12, 13, 14],
    ]
    assert shear(counted)[0, 0].tolist() == expected


def test_shear_of_one_query_is_itself() -> None:
    assert shear(mx.arange(5).reshape(1, 1, 1, 5)).tolist() == [[[[0, 1, 2, 3, 4]]]]


def test_rel_shift_of_the_specification_reads_the_same_distances() -> None:
    """The hand-checked 1×1×3×5 case: positions 2 … -2, so key j of query i reads column 2 - (i - j)."""
    counted = np.arange(15).reshape(1, 3, 5)
    assert rel_shift(counted)[0, :, :3].tolist() == [[2, 3, 4], [6, 7, 8], [10, 11, 12]]


def test_sinusoids_interleave_sine_and_cosine_of_the_distance() -> None:
    np.testing.assert_allclose(sinusoids(7, WIDTH), table(7)[6::-1], atol=1e-6)


def test_the_window_70_0_allows_self_and_70_left() -> None:
    module = RelPosMultiHeadAttention(WIDTH, HEADS, 70)
    allowed = np.asarray(module.mask(100, mx.array(0)))  # column c is frame c - 70
    assert allowed.shape == (100, 170)
    for query in range(100):
        frames = np.flatnonzero(allowed[query]) - 70
        assert frames.tolist() == list(range(max(0, query - 70), query + 1))
    seen = np.asarray(module.mask(1, mx.array(70)))
    assert seen.shape == (1, 71)
    assert seen.all()


@pytest.mark.parametrize(("left", "length"), [(70, 9), (70, 1), (4, 9), (4, 5), (4, 4), (1, 6), (0, 5)])
def test_it_equals_the_specification(left: int, length: int) -> None:
    module, x = make(left), normal(1, length, WIDTH)
    np.testing.assert_allclose(module(x)[0], by_hand(module, np.asarray(x[0], np.float64), left), **CLOSE)


@pytest.mark.parametrize("cuts", [[1], [3, 4], [8], list(range(1, 13)), [2, 2, 9]])
@pytest.mark.parametrize("left", [0, 1, 4, 70])
def test_frames_in_pieces_give_the_same_output(left: int, cuts: list[int]) -> None:
    module, x = make(left), normal(2, 13, WIDTH)
    cache = module.make_cache(2, mx.float32)
    pieces = []
    for piece in mx.split(x, cuts, axis=1):
        if piece.shape[1]:
            pieces.append(module(piece, cache))
            end_step(cache, piece.shape[1])
    np.testing.assert_allclose(mx.concatenate(pieces, axis=1), module(x), **CLOSE)


def test_a_frame_forgets_what_is_older_than_its_window() -> None:
    module, x = make(4), normal(1, 12, WIDTH)
    before = np.asarray(module(x))
    moved = mx.array(np.asarray(x))
    moved[0, 3] += 1.0
    changed = np.flatnonzero((np.asarray(module(moved)) != before).any(axis=(0, 2)))
    assert changed.tolist() == [3, 4, 5, 6, 7]
