"""Caches: tails of streams, and keys and values against dense masked attention written out in NumPy."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tests.models import normal
from voicechat_mlx.nn.attention import attend
from voicechat_mlx.nn.cache import (
    KV_BLOCK,
    Cache,
    KVCache,
    Tail,
    Timeline,
    arrays_of,
    begin_step,
    end_step,
    limit_history,
    set_arrays,
)

HEADS, KEY_HEADS, SIZE = 4, 2, 6
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
"""float32 against float64, sums of a few hundred products with weights that add up to one."""


def dense(q: np.ndarray, k: np.ndarray, v: np.ndarray, window: int | None, kept: int = 0) -> np.ndarray:
    """(B, H, T, D) → (B, T, H · D): a frame sees itself and those before it, `window` in all, and the first `kept`."""
    k, v = (np.repeat(part, HEADS // KEY_HEADS, axis=1) for part in (k, v))
    scores = q @ k.swapaxes(-1, -2) * 0.4
    i, j = np.arange(q.shape[2])[:, None], np.arange(q.shape[2])[None]
    scores = np.where((j <= i) & ((j > i - (window or len(i))) | (j < kept)), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    context = (weights / weights.sum(axis=-1, keepdims=True)) @ v
    return context.transpose(0, 2, 1, 3).reshape(q.shape[0], q.shape[2], -1)


def stream(
    parts: list[int], window: int | None, batch: int = 1, history: tuple[int, int] | None = None
) -> tuple[np.ndarray, np.ndarray, KVCache]:
    """Attention over random frames fed in parts of these lengths → (from the cache, dense, the cache).

    `history`: frames and kept ones, for `limit_history`.
    """
    total = sum(parts)
    q = normal(batch, HEADS, total, SIZE)
    k, v = (normal(batch, KEY_HEADS, total, SIZE, seed=seed) for seed in (1, 2))
    cache = KVCache(batch, KEY_HEADS, SIZE, window, mx.float32)
    if history:
        limit_history(cache, *history)
    out, start = [], 0
    for steps in parts:
        begin_step(cache, steps)
        part = (x[:, :, start : start + steps] for x in (q, k, v))
        out.append(attend(*part, cache, scale=0.4, mask=cache.mask(steps)))
        end_step(cache, steps)
        start += steps
    expected = dense(*(np.asarray(x, np.float64) for x in (q, k, v)), *(history or (window,)))
    return np.asarray(mx.concatenate(out, axis=1)), expected, cache


@pytest.mark.parametrize("window", [1, 2, 5, 8])
@pytest.mark.parametrize(
    "parts",
    [
        [1] * 20,  # wraps, one by one
        [20],  # more than the window at once
        [5, 15],  # more than the window over a window that is not full
        [3, 1, 1, 9, 1, 2, 3],  # several steps over the wrap, then single ones
        [8, 8, 4],  # whole windows
        [37, 1, 1, 1],  # a voice prompt longer than the window
    ],
    ids=str,
)
def test_a_sliding_window_equals_dense_masked_attention(window: int, parts: list[int]) -> None:
    found, expected, cache = stream(parts, window)
    np.testing.assert_allclose(found, expected, **CLOSE)
    assert cache.capacity == window


@pytest.mark.parametrize("frames", [1, 2, 5, 8])
@pytest.mark.parametrize("kept", [0, 1, 3])
@pytest.mark.parametrize(
    "parts",
    [
        [3] + [1] * 20,  # a prompt, then one by one
        [3, 20],  # a prompt, then more than the history at once
        [1, 1, 1, 5, 15],
        [3, 1, 1, 9, 1, 2, 3],
        [23],
    ],
    ids=str,
)
def test_a_limited_history_is_the_beginning_and_the_latest_frames(frames: int, kept: int, parts: list[int]) -> None:
    found, expected, cache = stream(parts, None, history=(frames, kept))
    np.testing.assert_allclose(found, expected, **CLOSE)
    assert cache.capacity == frames + kept


def test_a_history_that_is_not_full_is_whole() -> None:
    found, expected, _ = stream([4] + [1] * 30, None, history=(1000, 4))
    whole, _, _ = stream([4] + [1] * 30, None)
    np.testing.assert_allclose(found, expected, **CLOSE)
    np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize("parts", [[1] * 12, [12], [5, 1, 6]], ids=str)
def test_without_a_window_everything_before_is_seen(parts: list[int]) -> None:
    found, expected, _ = stream(parts, None, batch=2)
    np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.parametrize(
    ("parts", "window", "capacities"),
    [
        ([KV_BLOCK - 1, 1, 1, 1], None, [KV_BLOCK, KV_BLOCK, 2 * KV_BLOCK, 2 * KV_BLOCK]),
        ([KV_BLOCK + 3, 2], None, [2 * KV_BLOCK, 2 * KV_BLOCK]),
        ([KV_BLOCK, 10, 40, 1, 1], KV_BLOCK + 44, [KV_BLOCK] + [KV_BLOCK + 44] * 4),
        ([KV_BLOCK - 1, 3, 60, 1], KV_BLOCK + 44, [KV_BLOCK] + [KV_BLOCK + 44] * 3),
    ],
    ids=["one by one", "at once", "up to a window", "over a window"],
)
def test_growth_in_blocks_loses_nothing(parts: list[int], window: int | None, capacities: list[int]) -> None:
    for index in range(len(parts)):
        found, expected, cache = stream(parts[: index + 1], window)
        np.testing.assert_allclose(found, expected, **CLOSE)
        assert cache.capacity == capacities[index]


def test_position_and_offset_count_the_same_frames() -> None:
    _, _, cache = stream([3, 1, 9], 5)
    assert cache.position == cache.offset.item() == 13


def test_the_mask_of_an_empty_cache_is_causal_and_hides_unused_slots() -> None:
    cache = KVCache(1, 1, 1, 6, mx.float32)
    cache.reserve(3)
    assert cache.mask(3).tolist() == [[1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]]


def test_a_clone_goes_its_own_way() -> None:
    _, _, cache = stream([4], 3)
    before = [np.asarray(array).copy() for array in arrays_of(cache)]
    twin = cache.clone()
    assert isinstance(twin, KVCache)
    begin_step(twin, 1)
    twin.update(mx.ones((1, KEY_HEADS, 1, SIZE)), mx.ones((1, KEY_HEADS, 1, SIZE)))
    end_step(twin, 1)
    assert cache.position == 4
    for old, array in zip(before, arrays_of(cache), strict=True):
        np.testing.assert_array_equal(old, array)
    assert twin.position == twin.offset.item() == 5


def test_layers_that_share_a_timeline_share_it_in_a_clone_too() -> None:
    timeline = Timeline()
    layers = Layers([KVCache(1, 1, 1, window, mx.float32, timeline) for window in (None, 3)])
    begin_step(layers, 2)
    end_step(layers, 2)
    twin = layers.clone()
    begin_step(twin, 5)
    end_step(twin, 5)
    assert [cache.position for cache in layers.caches] == [2, 2]
    assert [cache.offset.item() for cache in layers.caches] == [2, 2]
    assert [cache.position for cache in twin.caches] == [7, 7]
    assert twin.caches[0].timeline is twin.caches[1].timeline
    assert len(arrays_of(twin)) == 2 * 2 + 1  # keys and values of each, one offset


class Layers(Cache):
    def __init__(self, caches: list[KVCache]) -> None:
        self.caches = caches


class Nest(Cache):
    def __init__(self) -> None:
        self.one = Tail(1, 2, dtype=mx.float32)
        self.many = [Tail(1, 1, dtype=mx.float32), Tail(1, 3, dtype=mx.float32)]
        self.label = "constant"


def test_arrays_come_out_in_a_fixed_order_and_go_back_in() -> None:
    nest = Nest()
    assert [array.shape for array in arrays_of(nest)] == [(1, 2), (1, 1), (1, 3)]
    twin = nest.clone()
    set_arrays(nest, [array + 1 for array in arrays_of(nest)])
    assert [array.sum().item() for array in arrays_of(nest)] == [2, 1, 3]
    assert [array.sum().item() for array in arrays_of(twin)] == [0, 0, 0]
    with pytest.raises(ValueError, match="shorter"):
        set_arrays(nest, arrays_of(nest)[:2])


def test_a_tail_keeps_the_newest_steps_and_starts_with_zeros() -> None:
    tail = Tail(1, 3, dtype=mx.float32)
    assert tail.extend(mx.array([[1.0, 2.0]])).tolist() == [[0, 0, 0, 1, 2]]
    assert tail.steps.tolist() == [[0, 1, 2]]
    assert tail.extend(mx.array([[3.0, 4.0, 5.0, 6.0]])).tolist() == [[0, 1, 2, 3, 4, 5, 6]]
    assert tail.steps.tolist() == [[4, 5, 6]]


def test_a_tail_of_length_zero_remembers_nothing() -> None:
    tail = Tail(1, 0, dtype=mx.float32)
    assert tail.extend(mx.array([[1.0, 2.0]])).tolist() == [[1, 2]]
    assert tail.steps.shape == (1, 0)
