"""Sessions and seeds: each session gives what it would give alone, and none leaves a trace in the model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx.utils import tree_flatten

from tests.models import SHALLOW, Float32, build, shallow, speech, tiny
from tests.talks import assert_identical, outcome, pieces_of, talk
from voicechat_mlx import Session
from voicechat_mlx.events import Event
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.nn.cache import arrays_of

SAMPLES = 8000


def speakers() -> list[dict[str, Any]]:
    """Four conversations that have nothing in common."""
    return [
        {"system_prompt": "", "seed": 0, "conventions": "mlx"},
        {"system_prompt": "Be concise.", "seed": 0, "conventions": "mlx"},
        {"system_prompt": "", "seed": 7, "conventions": "nemo"},
        {"system_prompt": "</s>", "seed": 2**31, "conventions": "mlx"},
    ]


def voice(index: int) -> Float32:
    return speech(SAMPLES / 16000, seed=index)


def everything(model: VoiceChat) -> Iterator[mx.array]:
    """All arrays that a model holds: weights, what is derived from them, and voice prompts."""
    yield from (array for _, array in tree_flatten(dict(model)) if isinstance(array, mx.array))
    for prompt in model._voice_prompts.values():
        yield prompt.codes
        yield from arrays_of(prompt.cache)


def fingerprint(model: VoiceChat) -> str:
    digest = hashlib.sha256()
    for array in everything(model):
        digest.update(str((array.shape, array.dtype)).encode())
        digest.update(np.asarray(array).tobytes())
    return digest.hexdigest()


@given(
    schedule=st.lists(st.integers(0, 3), min_size=8, max_size=24),
    count=st.integers(2, 4),
    data=st.data(),
)
@settings(max_examples=6)
def test_interleaved_sessions_give_what_each_gives_alone(schedule: list[int], count: int, data: st.DataObject) -> None:
    """Pushes of two to four sessions in any order; each is finished as soon as its input is used up."""
    model = shallow()
    places = [data.draw(st.lists(st.integers(0, SAMPLES), max_size=6)) for _ in range(count)]
    waiting = [pieces_of(voice(index), places[index]) for index in range(count)]
    sessions = [Session(model, **speakers()[index]) for index in range(count)]
    events: list[list[Event]] = [[] for _ in range(count)]
    for turn in [*(turn % count for turn in schedule), *(index for index in range(count) for _ in range(8))]:
        if waiting[turn]:
            events[turn] += sessions[turn].push(waiting[turn].pop(0))
            if not waiting[turn]:
                events[turn] += sessions[turn].finish()
    for index in range(count):
        alone = talk(model, voice(index), places[index], **speakers()[index])
        assert_identical(outcome(sessions[index], events[index]), alone)


@given(seed=st.integers(0, 2**32 - 1), others=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3))
@settings(max_examples=4)
def test_the_same_seed_gives_the_same_bytes_whatever_ran_in_between(seed: int, others: list[int]) -> None:
    first = talk(shallow(), voice(0), seed=seed)
    for other in others:
        mx.random.seed(other % 1000)
        mx.eval(mx.random.normal((3,)))
        talk(shallow(), voice(1), seed=other)
    assert_identical(talk(shallow(), voice(0), seed=seed), first)


def test_another_seed_gives_other_codes_but_the_same_words() -> None:
    one, two = (talk(tiny(), voice(0), seed=seed) for seed in (0, 1))
    assert (one.codes != two.codes).any()
    assert not np.array_equal(one.audio, two.audio)
    assert one.text_ids == two.text_ids
    assert one.pieces == two.pieces


def test_seeds_do_not_matter_without_noise_and_with_a_nucleus_of_one() -> None:
    calm = {**SHALLOW["tts_config"], "noise_scale": 0.0, "top_p": 1e-9}
    model = build({**SHALLOW, "tts_config": calm})
    assert_identical(talk(model, voice(0), seed=5), talk(model, voice(0), seed=0))


def test_noise_alone_makes_seeds_matter() -> None:
    noisy = {**SHALLOW["tts_config"], "noise_scale": 0.5, "top_p": 1e-9}
    model = build({**SHALLOW, "tts_config": noisy})
    assert (talk(model, voice(0), seed=1).codes != talk(model, voice(0), seed=0).codes).any()


def test_one_session_then_another_then_the_first_again_are_identical() -> None:
    model = build(SHALLOW)
    first, second = speakers()[1], speakers()[2]
    before = talk(model, voice(0), **first)
    between = talk(model, voice(1), **second)
    assert_identical(talk(model, voice(0), **first), before)
    assert_identical(talk(build(SHALLOW), voice(1), **second), between)


@pytest.mark.parametrize("finished", [True, False])
def test_a_session_never_changes_the_model(finished: bool) -> None:
    model = build(SHALLOW)
    for chosen in ("mlx", "nemo"):  # voice prompts are made on first use, then kept
        Session(model, "", conventions=chosen)
    before = fingerprint(model)
    names = set(vars(model)) | set(model)
    for index, speaker in enumerate(speakers()):
        session = Session(model, **speaker)
        session.push(voice(index))
        if finished:
            session.finish()
    assert fingerprint(model) == before
    assert set(vars(model)) | set(model) == names


def test_no_global_random_state_is_touched() -> None:
    model = build(SHALLOW)
    mx.random.seed(123)
    np.random.seed(123)  # the legacy global state is what must not move
    before = [np.asarray(array).copy() for array in mx.random.state]
    legacy = np.random.get_state()[1].copy()
    talk(model, voice(0), system_prompt="Be concise.", seed=5)
    for old, new in zip(before, mx.random.state, strict=True):
        np.testing.assert_array_equal(old, new)
    np.testing.assert_array_equal(legacy, np.random.get_state()[1])


def test_a_global_seed_changes_nothing() -> None:
    mx.random.seed(1)
    first = talk(shallow(), voice(0))
    mx.random.seed(2)
    assert_identical(talk(shallow(), voice(0)), first)
