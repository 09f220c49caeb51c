"""How a session ends: finished with silence, at its limit, cancelled. And what it says about its time."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from tests.models import SHALLOW, build, hasty, shallow, speech
from tests.talks import assert_same, outcome, talk
from voicechat_mlx import Audio, Cancelled, Done, FrameTiming, InputError, Session, SessionError
from voicechat_mlx.events import Event, FunctionDelta, TextDelta, TranscriptDelta
from voicechat_mlx.text import decode_pieces

FRAME, SAMPLES = 1280, 1764
SILENT = {12, 11, 1, 2}


def audio_frames(events: list[Event]) -> int:
    return sum(len(event.samples) for event in events if isinstance(event, Audio)) // SAMPLES


# finish(extra_seconds)


@pytest.mark.parametrize(("seconds", "samples"), [(0.0, 0), (0.5, 8000), (0.24, 3840), (0.00003, 0), (1 / 3, 5333)])
def test_finishing_with_extra_seconds_is_pushing_that_much_silence_first(seconds: float, samples: int) -> None:
    pcm = speech(0.6)
    session = Session(shallow(), "")
    found = outcome(session, session.push(pcm) + session.finish(extra_seconds=seconds))
    assert_same(found, talk(shallow(), np.concatenate([pcm, np.zeros(samples, np.float32)]), [len(pcm)]))
    assert found.events[-1] == Done(frame=session.frames, reason="finished")


def test_silence_alone_is_a_talk_too() -> None:
    session = Session(hasty(), "")
    assert session.finish(0.24)[-1] == Done(frame=4)  # 1 + 3840 // 160 mel rows are 4 frames


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1", None, 1e9])
def test_extra_seconds_that_cannot_be_are_refused_and_the_session_goes_on(seconds: Any) -> None:
    session = Session(hasty(), "")
    session.push(speech(0.2))
    with pytest.raises(InputError):
        session.finish(seconds)
    assert session.is_open
    assert isinstance(session.finish()[-1], Done)


# limit_seconds


@pytest.mark.parametrize(
    ("seconds", "frames"), [(0.24, 3), (0.05, 1), (0.08, 1), (0.01, 1), (0.13, 2), (0.4, 5), (1, 12)]
)
@pytest.mark.parametrize("size", [FRAME, 700, 100_000])
def test_a_limit_in_seconds_is_that_many_whole_frames(seconds: float, frames: int, size: int) -> None:
    """0.24 / 0.08 is 2.9999999999999996 in floating point, and still three frames; 1 s is 12.5, to the even 12."""
    session, pcm, events = Session(hasty(), "", limit_seconds=seconds), speech(2.0), []
    for begin in range(0, len(pcm), size):
        if session.is_open:
            events += session.push(pcm[begin : begin + size])
    assert events[-1] == Done(frame=frames, reason="limit")
    assert [type(event) for event in events].count(Done) == 1
    assert session.frames == len(session.text_tokens) == audio_frames(events) == frames


def test_up_to_its_limit_a_session_is_like_any_other() -> None:
    pcm = speech(2.0)
    limited, whole = Session(shallow(), "", limit_seconds=0.8), talk(shallow(), pcm)
    found = outcome(limited, limited.push(pcm))
    assert found.text_ids == whole.text_ids[:10]
    np.testing.assert_array_equal(found.codes, whole.codes[:10])
    held_back = 6  # samples that the eleventh frame would have had a part in
    np.testing.assert_allclose(found.audio[:-held_back], whole.audio[: 10 * SAMPLES - held_back], rtol=0, atol=1e-5)


def test_at_its_limit_a_session_is_closed_and_says_why() -> None:
    session = Session(hasty(), "", limit_seconds=0.24)
    session.push(speech(1.0))
    assert not session.is_open
    for call in (lambda: session.push(speech(0.1)), lambda: session.push([]), session.finish):
        with pytest.raises(SessionError, match=r"limit of 0\.24 s"):
            call()
    assert session.cancel() == []


@pytest.mark.parametrize("conventions", ["mlx", "nemo"])
@pytest.mark.parametrize("samples", range(2300, 4400, 160))
def test_finishing_never_answers_more_frames_than_the_limit(samples: int, conventions: str) -> None:
    """The last mel rows, known only at the end, may complete one frame more."""
    session = Session(hasty(), "", conventions=conventions, limit_seconds=0.24)
    events = session.push(speech(0.3)[:samples])
    if session.is_open:
        events += session.finish()
    whole = (1 + samples // 160 - 2) // 8 + 2
    assert session.frames == min(3, whole)
    assert events[-1] == Done(frame=session.frames, reason="limit" if whole > 3 or not reached(samples) else "finished")


def reached(samples: int) -> bool:
    """Whether the third frame, which needs the samples below 2 · 1280 + 200, waits for the end of the sound."""
    return samples < 2 * FRAME + 200


def test_the_limit_may_come_while_the_last_silence_is_heard() -> None:
    session = Session(hasty(), "", limit_seconds=0.8)
    session.push(speech(0.4))
    assert session.finish(extra_seconds=3.0)[-1] == Done(frame=10, reason="limit")


@pytest.mark.parametrize("name", ["limit_seconds", "history_seconds"])
@pytest.mark.parametrize(
    "seconds",
    [0, -1, -(10**5000), float("nan"), float("inf"), "1", True],
    ids=lambda seconds: f"{seconds:.4}" if isinstance(seconds, float) else type(seconds).__name__,
)
def test_a_length_must_be_a_number_above_zero(name: str, seconds: Any) -> None:
    with pytest.raises(InputError, match=name):
        Session(hasty(), "", **{name: seconds})


@pytest.mark.parametrize("seconds", [1e8, 1e308, 10**400], ids=["three years", "all floats", "no float"])
def test_a_length_beyond_every_talk_is_as_none(seconds: float) -> None:
    session = Session(hasty(), "", limit_seconds=seconds, history_seconds=seconds)
    pcm = speech(0.6)
    assert_same(outcome(session, session.push(pcm) + session.finish()), talk(hasty(), pcm))


@pytest.mark.parametrize("seed", [True, 10**5000], ids=["true", "too long to be printed"])
def test_a_seed_that_is_none_is_refused(seed: int) -> None:
    with pytest.raises(InputError, match="seed"):
        Session(hasty(), "", seed=seed)


# cancel


@pytest.mark.parametrize("pushed", [0, 100, 5000])
def test_cancelling_ends_the_talk_at_once(pushed: int) -> None:
    session = Session(hasty(), "")
    session.push(speech(1.0)[:pushed])
    frames = session.frames
    assert session.cancel() == [Cancelled(frame=frames)]
    assert not session.is_open
    for call in (lambda: session.push(speech(0.1)), session.finish, lambda: session.add_tool_result("call_0", 1)):
        with pytest.raises(SessionError, match="cancelled"):
            call()
    assert session.cancel() == []
    assert len(session.text_tokens) == session.frames == frames


def test_a_finished_session_cannot_be_cancelled_and_a_broken_one_can(monkeypatch: pytest.MonkeyPatch) -> None:
    finished, broken = Session(hasty(), ""), Session(hasty(), "")
    finished.finish()
    assert finished.cancel() == []

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(broken._pipeline, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        broken.push(speech(0.2))
    assert broken.cancel() == [Cancelled(frame=0)]


@pytest.mark.parametrize("end", ["cancel", "finish", "limit"])
def test_the_caches_are_given_up_at_the_end_even_if_the_session_is_kept(end: str) -> None:
    session = Session(build(SHALLOW), "", limit_seconds=0.4 if end == "limit" else None)
    past = weakref.ref(session._pipeline._past)
    session.push(speech(0.2))
    if end == "limit":
        session.push(speech(1.0))
    else:
        getattr(session, end)()
    gc.collect()
    assert past() is None
    assert len(session.text_tokens) == session.frames > 0


def test_a_session_that_was_cancelled_leaves_others_alone() -> None:
    pcm = speech(0.6)
    one, other = Session(shallow(), ""), Session(shallow(), "")
    events = other.push(pcm[:4000])
    one.push(pcm)
    one.cancel()
    events += other.push(pcm[4000:]) + other.finish()
    assert_same(outcome(other, events), talk(shallow(), pcm, [4000]))


# Time


def test_every_frame_has_its_timing_when_asked_for_and_none_otherwise() -> None:
    pcm = speech(1.0)
    session = Session(shallow(), "", frame_timing=True)
    events = session.push(pcm[:3000]) + session.push(pcm[3000:]) + session.finish()
    timings = [event for event in events if isinstance(event, FrameTiming)]
    assert [event.frame for event in timings] == list(range(session.frames))
    work = sum(seconds for stage, seconds in session.seconds.items() if stage != "prompt")
    assert sum(event.total_seconds for event in timings) == pytest.approx(work)
    plain = [event for event in events if not isinstance(event, FrameTiming)]
    assert_same(outcome(session, plain), talk(shallow(), pcm, [3000]))


def test_a_profile_has_every_stage_of_a_frame_and_leaves_the_prompt_out() -> None:
    session = Session(shallow(), "Be brief.", profile=True)
    assert session.profile.frames == 0
    session.push(speech(1.0))
    profile = session.profile
    assert profile.frames == session.frames
    assert set(profile.stages) == {"frontend", "perception", "rnnt", "llm", "talker", "codec"}
    assert all(0 < timing.median <= timing.p95 for timing in [*profile.stages.values(), profile.total])
    session.cancel()
    assert session.profile == profile


# Texts


def test_deltas_joined_are_the_whole_texts_at_any_moment() -> None:
    """Not only at the end: what was said is never taken back, so a listener may show it at once."""
    session, joined = Session(shallow(), ""), {TextDelta: "", FunctionDelta: "", TranscriptDelta: ""}
    pcm = speech(1.5)
    for begin in range(0, len(pcm), FRAME):
        for event in session.push(pcm[begin : begin + FRAME]):
            if type(event) in joined:
                joined[type(event)] += event.text
        assert joined[TranscriptDelta] == decode_pieces(session.transcript.ids, session._model.rnnt_vocabulary)
        said = [id for id in session.text_tokens.tolist() if id not in SILENT]
        whole = session._model.tokenizer.decode(said)
        assert whole.startswith(joined[TextDelta])
        assert set(whole[len(joined[TextDelta]) :]) <= {"\ufffd"}  # at most a character that lacks bytes
