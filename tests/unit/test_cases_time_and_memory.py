"""Faults that users of such software report: time that grows with the square of the talk, memory with every frame."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.models import HASTY, build, hasty, shallow, speech
from voicechat_mlx import Session, generate
from voicechat_mlx.conventions import MLX
from voicechat_mlx.nn.cache import KV_BLOCK
from voicechat_mlx.pipeline import Pipeline

FRAME = 1280
FORGETFUL: dict[str, Any] = {
    **HASTY,
    "text_config": {"num_hidden_layers": 1, "hybrid_override_pattern": "M"},
    "tts_config": {**HASTY["tts_config"], "num_hidden_layers": 1, "sliding_window_pattern": 9},
    "codec_config": {**HASTY["codec_config"], "base_channels": 4},
}
"""Only windows and states, no attention over everything: nothing that is documented to grow."""
REMEMBERING: dict[str, Any] = {**FORGETFUL, "text_config": {"num_hidden_layers": 1, "hybrid_override_pattern": "*"}}
"""One attention layer over everything: 2 key heads of 32 numbers, keys and values, 4 bytes each."""
GROWTH_PER_BLOCK = KV_BLOCK * 2 * 32 * 2 * 4


@contextmanager
def cache_limit(size: int) -> Iterator[None]:
    """MLX keeps up to that many bytes of freed buffers, by default 32 MiB on a CPU."""
    gc.collect()  # models of earlier tests
    before = mx.set_cache_limit(size)
    mx.clear_cache()
    try:
        yield
    finally:
        mx.set_cache_limit(before)
        mx.clear_cache()


@pytest.fixture
def exact_buffers() -> Iterator[None]:
    """No buffer is reused for something smaller, and nothing of other tests is left to be collected meanwhile."""
    gc.collect()
    with cache_limit(0):
        yield


@pytest.fixture
def unlimited_buffer_cache() -> Iterator[None]:
    """What would be dropped at the limit is kept, so that growth shows."""
    with cache_limit(1 << 34):
        yield


def listen(session: Session, frames: int, at_once: int = 1, measure: Callable[[list[int]], int] = max) -> int:
    """Push that many frames, some at once → the most (or the least) memory that MLX held after a push, in bytes."""
    pcm, held = speech(4.0), []
    for first in range(0, frames, at_once):
        start = FRAME * (first % 50)
        session.push(pcm[start : start + FRAME * at_once])
        held.append(mx.get_active_memory())
    return measure(held)


def test_offline_time_is_linear() -> None:
    """200 frames cost at most 4.5 times 50: the best of up to eight, since a busy machine only ever adds time."""
    short, long = speech(49 * 0.08), speech(199 * 0.08)
    generate(hasty(), short, "", 0.0)

    def cost(pcm: np.ndarray, frames: int) -> float:
        begin = time.process_time()
        assert generate(hasty(), pcm, "", 0.0).frames == frames
        return time.process_time() - begin

    shorts, longs = [], []
    for _ in range(8):
        shorts.append(cost(short, 50))
        longs.append(cost(long, 200))
        if min(longs) < 4.5 * min(shorts):
            return
    raise AssertionError(f"{min(longs):.2f} s for 200 frames, {min(shorts):.2f} s for 50")


@pytest.mark.slow
def test_memory_is_flat_over_2000_frames(exact_buffers: None) -> None:
    """Once the windows are full, MLX's memory grows by less than one byte a frame, in short pushes and in long ones."""
    session = Session(build(FORGETFUL), "")
    listen(session, 150)
    early = listen(session, 50)
    listen(session, 1250, at_once=10)
    listen(session, 500)
    assert listen(session, 50) - early < 1800
    assert session.frames == 2000


def test_attention_over_everything_grows_by_what_its_keys_and_values_take(exact_buffers: None) -> None:
    """By one block in the length of a block, to less than a byte a frame. The least of 50: some leave a vector."""
    session = Session(build(REMEMBERING), "")
    listen(session, KV_BLOCK - 60)
    early = listen(session, 50, measure=min)
    listen(session, KV_BLOCK - 50)
    assert abs(listen(session, 50, measure=min) - early - GROWTH_PER_BLOCK) < KV_BLOCK


@pytest.mark.slow
def test_a_talk_ten_times_as_long_as_its_history_keeps_memory_and_time_flat(exact_buffers: None) -> None:
    """Every kind of layer, 3 000 frames, a history of 300: less than a byte a frame, and no slower at the end."""
    session = Session(build(HASTY), "Be brief.", history_seconds=300 * 0.08)

    def cost() -> float:
        """Of 50 frames, the best of five times."""
        times = []
        for _ in range(5):
            begin = time.process_time()
            listen(session, 50)
            times.append(time.process_time() - begin)
        return min(times)

    listen(session, 400)
    early = listen(session, 50)
    begin = cost()
    listen(session, 2000, at_once=10)
    end = cost()
    assert listen(session, 50) - early < 2600
    assert session.frames == 3000
    assert end < 1.4 * begin


def test_a_finished_session_gives_its_memory_back(exact_buffers: None) -> None:
    model = build(REMEMBERING)
    Session(model, "").push(speech(1.0))
    gc.collect()
    before = mx.get_active_memory()
    session = Session(model, "")
    listen(session, 40)
    session.finish()
    assert mx.get_active_memory() > before + GROWTH_PER_BLOCK
    del session
    gc.collect()
    assert mx.get_active_memory() == before


def owner(array: np.ndarray) -> object:
    """Whose memory the array shows: None for its own."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base


@pytest.mark.parametrize("frames", [1, 3])
def test_what_is_kept_of_a_frame_does_not_hold_on_to_buffers_of_mlx(frames: int) -> None:
    """A view of a result keeps its whole buffer alive, for as long as the session remembers its ids."""
    pipeline = Pipeline(shallow(), [], 0, MLX)
    pipeline.advance(np.zeros((1, 128), np.float32))
    ids = pipeline.advance(np.zeros((8 * frames, 128), np.float32)).ids
    assert [owner(array) for array in (ids.text, ids.function, ids.codes)] == [None] * 3


def test_the_host_keeps_the_documented_132_bytes_a_frame_and_little_more() -> None:
    """Ids and 31 codes of four bytes are 132 bytes; twice that leaves room for lists that grow ahead."""
    session = Session(shallow(), "")
    listen(session, 20)
    tracemalloc.start()
    try:
        listen(session, 10)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        listen(session, 60)
        gc.collect()
        growth = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    pieces = 16 * (len(session.transcript.ids) + 100)  # two pointers for each, in lists that grow ahead
    assert growth < 60 * 2 * 132 + pieces


def test_pushes_of_ever_new_sizes_do_not_fill_the_buffer_cache(unlimited_buffer_cache: None) -> None:
    """What MLX computes depends on the number of frames in a push, not of samples: few shapes, soon all known."""
    session, generator = Session(build(FORGETFUL), ""), np.random.default_rng(0)
    pcm = speech(4.0)

    def listen_to_pieces(frames: int) -> int:
        target = session.frames + frames
        while session.frames < target:
            size = int(generator.integers(1, 4 * FRAME))
            start = int(generator.integers(0, len(pcm) - size))
            session.push(pcm[start : start + size])
        return mx.get_cache_memory()

    early = listen_to_pieces(300)
    assert listen_to_pieces(300) < 1.25 * early
