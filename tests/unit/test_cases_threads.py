"""Faults that users of such software report: what was made in one thread fails in another.

Supported and tested: a model loaded in one thread, sessions opened, fed and finished in others, one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import mlx.core as mx
import pytest

from tests.models import SHALLOW, build, speech
from tests.talks import assert_identical, outcome, pieces_of, talk
from voicechat_mlx import AudioError, Session, generate, load
from voicechat_mlx.conventions import MLX
from voicechat_mlx.nn.cache import arrays_of

Result = TypeVar("Result")
PROMPT = "Be concise."
PCM = speech(0.6)


def in_new_thread(call: Callable[[], Result]) -> Result:
    """Run in a thread of its own, which ends with the call."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(call).result()


def test_a_model_loaded_in_one_thread_talks_in_another(tiny_fp32) -> None:
    model = in_new_thread(lambda: load(tiny_fp32))
    found = in_new_thread(lambda: talk(model, PCM, system_prompt=PROMPT))
    assert_identical(found, talk(load(tiny_fp32), PCM, system_prompt=PROMPT))


def test_a_quantised_model_loaded_in_one_thread_talks_in_another(tiny_4bit) -> None:
    model = in_new_thread(lambda: load(tiny_4bit))
    assert generate(model, PCM, "", 0.0).frames == in_new_thread(lambda: generate(model, PCM, "", 0.0)).frames


def test_sessions_in_two_threads_one_after_the_other_are_identical() -> None:
    model = in_new_thread(lambda: build(SHALLOW))
    first, second = (in_new_thread(lambda: talk(model, PCM, [5000])) for _ in range(2))
    assert_identical(first, second)


@pytest.mark.parametrize("prompt", ["", PROMPT])
def test_one_session_may_move_to_a_new_thread_with_every_push(prompt: str) -> None:
    model, places = in_new_thread(lambda: build(SHALLOW)), [1000, 3000, 5000]
    session = in_new_thread(lambda: Session(model, prompt))
    events = []
    for piece in pieces_of(PCM, places):
        events += in_new_thread(lambda piece=piece: session.push(piece))
    events += in_new_thread(session.finish)
    assert_identical(in_new_thread(lambda: outcome(session, events)), talk(model, PCM, places, system_prompt=prompt))


def test_two_sessions_in_two_threads_that_take_turns_do_not_mix() -> None:
    model, places = build(SHALLOW), [2500, 5000, 7500]
    with ThreadPoolExecutor(max_workers=1) as one, ThreadPoolExecutor(max_workers=1) as two:
        workers = [one, two]
        sessions = [pool.submit(Session, model, "", seed).result() for seed, pool in enumerate(workers)]
        events = [[], []]
        for piece in pieces_of(PCM, places):
            for index, pool in enumerate(workers):
                events[index] += pool.submit(sessions[index].push, piece).result()
        for index, pool in enumerate(workers):
            events[index] += pool.submit(sessions[index].finish).result()
    for seed in range(2):
        assert_identical(outcome(sessions[seed], events[seed]), talk(model, PCM, places, seed=seed))


def test_a_voice_prompt_made_in_one_thread_serves_sessions_in_others() -> None:
    """All of it, also what no frame of the prompt itself reads."""
    model = build(SHALLOW)
    prompt = in_new_thread(lambda: model.voice_prompt(MLX))
    mx.eval(prompt.codes, arrays_of(prompt.cache))
    assert_identical(in_new_thread(lambda: talk(model, PCM)), talk(build(SHALLOW), PCM))


def test_after_an_error_in_one_thread_the_model_goes_on_in_others() -> None:
    model = build(SHALLOW)
    with pytest.raises(AudioError, match="sample 0"):
        in_new_thread(lambda: Session(model, "").push([float("nan")]))
    assert_identical(in_new_thread(lambda: talk(model, PCM)), talk(build(SHALLOW), PCM))
