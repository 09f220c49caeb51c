"""A frame that is queued as a whole comes to the host once, at its end; every further look would stall a GPU.

The whole-frame path runs here as written (`mx.disable_compile`), so that its looks at the host can be counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.models import SHALLOW, build, speech
from voicechat_mlx import Session, pipeline
from voicechat_mlx.model import VoiceChat

FRAME = 1280
ARRAY_METHODS = ("item", "tolist", "__int__", "__float__", "__bool__", "__index__", "__dlpack__")
NUMPY_FUNCTIONS = ("array", "asarray", "ascontiguousarray", "concatenate", "copy", "flatnonzero", "stack")
"""What reads an array of MLX through its buffer, which cannot be seen from within Python."""


def arrays_in(value: Any) -> Iterator[mx.array]:
    if isinstance(value, mx.array):
        yield value
    elif isinstance(value, dict | list | tuple):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from arrays_in(entry)


class Waits:
    """How often the host waited for arrays; one that was waited for may be read any number of times."""

    def __init__(self) -> None:
        self.count = 0
        self._done: dict[int, mx.array] = {}
        """By identity; held, so that no other array gets the same one."""

    def wait_for(self, *values: Any) -> None:
        waited = {id(array): array for array in arrays_in(list(values))}
        self.count += not waited.keys() <= self._done.keys()
        self._done |= waited


@contextmanager
def counted_waits() -> Iterator[Waits]:
    """Counts `mx.eval` and whatever turns an array of MLX into numbers of the host."""
    waits = Waits()

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*values: Any, **options: Any) -> Any:
            waits.wait_for(*values)
            return function(*values, **options)

        return wrapper

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mx, "eval", counting(mx.eval))
        for name in ARRAY_METHODS:
            patch.setattr(mx.array, name, counting(getattr(mx.array, name)))
        for name in NUMPY_FUNCTIONS:
            patch.setattr(np, name, counting(getattr(np, name)))
        yield waits


@pytest.fixture(scope="module")
def model() -> Iterator[VoiceChat]:
    """Queues whole frames, as on a GPU."""
    mx.disable_compile()
    whole = build(SHALLOW)
    whole.run.compiled = True
    yield whole
    mx.enable_compile()


def waits_of_a_push(model: VoiceChat, frames: int) -> int:
    """In the middle of a talk: the very first frame has a path of its own."""
    session, pcm = Session(model, ""), speech(1.0)
    session.push(pcm[: 3 * FRAME])
    with counted_waits() as waits:
        session.push(pcm[3 * FRAME : (3 + frames) * FRAME])
    assert session.frames == 3 + frames
    return waits.count


@pytest.mark.parametrize("frames", [1, 5])
def test_a_push_waits_for_the_device_once_however_many_frames_it_completes(model, frames) -> None:
    assert waits_of_a_push(model, frames) == 1


@pytest.mark.parametrize(
    "look",
    [
        lambda ids: mx.eval(ids),
        lambda ids: np.asarray(ids),
        lambda ids: np.stack([ids, ids]),
        lambda ids: ids.tolist(),
        lambda ids: ids[0].item(),
        lambda ids: int(ids[0]),
        lambda ids: [*range(99)][ids[0] * 0],
        lambda ids: "equal" if ids[0] == ids[1] else "different",
    ],
    ids=["eval", "asarray", "stack", "tolist", "item", "int", "index", "condition"],
)
def test_a_look_at_the_ids_within_the_frame_would_be_noticed(model, monkeypatch, look) -> None:
    def think_and_look(*inputs: Any) -> mx.array:
        ids = pipeline_think(*inputs)
        look(ids)
        return ids

    pipeline_think = pipeline.think
    monkeypatch.setattr(pipeline, "think", think_and_look)
    assert waits_of_a_push(model, 1) == 2


def test_frames_taken_stage_by_stage_are_waited_for_more_than_once(model) -> None:
    """So the figure above is the whole-frame path's merit, not the counter's blindness."""
    session = Session(model, "", profile=True)
    session.push(speech(0.24))
    with counted_waits() as waits:
        session.push(speech(0.08))
    assert waits.count > 4
