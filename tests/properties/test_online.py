"""The law of the online service: pushes of any size, sessions in any order, tools in use or not, give the same talk."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models import Float32, hasty, shallow, speech
from tests.scripted import HASTY_LIMITS, talkative
from tests.talks import Talk, assert_same, outcome, talk
from voicechat_mlx import Session, ToolCall, ToolCallFailed
from voicechat_mlx.events import Event, FunctionDelta, TextDelta, TranscriptDelta
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.text import RnntPieces, decode_pieces

PCM = speech(5.0)
SIZES = st.lists(st.integers(1, 5000), min_size=40, max_size=60)
"""Samples of one push after another; the last ones may go unused."""


def places(sizes: list[int], length: int) -> list[int]:
    """Where pushes of these sizes cut a signal; the sizes are used again and again."""
    found, place, index = [], 0, 0
    while (place := place + sizes[index % len(sizes)]) < length:
        found.append(place)
        index += 1
    return found


@functools.cache
def model_with_tools() -> VoiceChat:
    return talkative()


def session_with_tools(seed: int = 0) -> Session:
    return Session(model_with_tools(), "", seed, tools=[{"name": "get_time"}], tool_limits=HASTY_LIMITS)


def heard(session: Session, pcm: Float32, cuts: list[int]) -> Talk:
    events: list[Event] = []
    for begin, end in zip([0, *cuts], [*cuts, len(pcm)], strict=True):
        events += session.push(pcm[begin:end])
    return outcome(session, events + session.finish())


def tool_events(found: Talk) -> list[Event]:
    return [event for event in found.events if isinstance(event, ToolCall | ToolCallFailed)]


@given(sizes=SIZES)
@settings(max_examples=4)
def test_pushes_of_1_to_5000_samples_give_what_one_push_gives(sizes: list[int]) -> None:
    pcm = PCM[:32000]
    found, whole = talk(shallow(), pcm, places(sizes, len(pcm))), talk(shallow(), pcm)
    assert_same(found, whole)
    for kind in (TextDelta, FunctionDelta, TranscriptDelta):
        assert found.joined(kind) == whole.joined(kind)


@given(frames=st.integers(1, 10), sizes=SIZES)
@settings(max_examples=4)
def test_a_history_of_a_few_frames_is_left_behind_alike_however_the_input_is_split(
    frames: int, sizes: list[int]
) -> None:
    """One push of more frames than the history must not look back further than single ones do."""
    seconds, pcm = frames * shallow().config.frame_duration, PCM[:48000]
    whole = heard(Session(shallow(), "Hello.", history_seconds=seconds), pcm, [])
    assert_same(heard(Session(shallow(), "Hello.", history_seconds=seconds), pcm, places(sizes, len(pcm))), whole)
    unbounded = heard(Session(shallow(), "Hello."), pcm, [])
    assert not np.array_equal(whole.codes, unbounded.codes)  # it was left behind


@given(sizes=SIZES)
@settings(max_examples=4)
def test_results_are_written_on_the_same_frames_whatever_the_pushes_are(sizes: list[int]) -> None:
    whole = heard(session_with_tools(), PCM, [])
    found = heard(session_with_tools(), PCM, places(sizes, len(PCM)))
    assert 22 in whole.function_ids  # something was written
    assert_same(found, whole)
    assert tool_events(found) == tool_events(whole)


@given(count=st.integers(2, 8), schedule=st.integers(0, 2**32))
@settings(max_examples=5)
def test_two_to_eight_sessions_interleaved_give_what_each_gives_alone(count: int, schedule: int) -> None:
    """Each has its own voice, prompt, seed and push sizes; whose turn it is is drawn."""
    random = np.random.default_rng(schedule)
    voices = [speech(1.0, seed=index) for index in range(count)]
    options: list[dict[str, Any]] = [
        {"system_prompt": "Be brief." * (index % 2), "seed": index // 2} for index in range(count)
    ]
    cuts = [places(random.integers(1, 5001, 20).tolist(), len(voice)) for voice in voices]
    sessions = [Session(hasty(), **chosen) for chosen in options]
    left = [list(zip([0, *cut], [*cut, len(voice)], strict=True)) for cut, voice in zip(cuts, voices, strict=True)]
    events: list[list[Event]] = [[] for _ in sessions]
    while any(left):
        turn = random.choice([index for index in range(count) if left[index]])
        begin, end = left[turn].pop(0)
        events[turn] += sessions[turn].push(voices[turn][begin:end])
    for index, session in enumerate(sessions):
        found = outcome(session, events[index] + session.finish())
        assert_same(found, talk(hasty(), voices[index], **options[index]))


def test_sessions_that_use_tools_do_not_disturb_one_another() -> None:
    alone = [heard(session_with_tools(seed), PCM[seed * 4000 :], []) for seed in range(3)]
    sessions = [session_with_tools(seed) for seed in range(3)]
    events: list[list[Event]] = [[] for _ in sessions]
    for begin in range(0, len(PCM), 2500):
        for seed, session in enumerate(sessions):
            events[seed] += session.push(PCM[seed * 4000 :][begin : begin + 2500])
    for seed, session in enumerate(sessions):
        found = outcome(session, events[seed] + session.finish())
        assert_same(found, alone[seed])
        assert tool_events(found) == tool_events(alone[seed])


PIECES = [
    "▁",
    "▁▁",
    " ",
    "▁the",
    "s",
    "é",
    "e\u0301",
    "\u00a0",
    "\n",
    "<s>",
    "<unk>",
    "<en-US>",
    "<0xE2>",
    "🙂",
    "\u200d",
    ".",
]


@given(ids=st.lists(st.integers(0, len(PIECES) - 1), max_size=30))
@settings(max_examples=300)
def test_a_transcript_only_grows(ids: list[int]) -> None:
    """After every piece the deltas joined are the whole transcript so far: no piece changes what is shown."""
    pieces, shown = RnntPieces(PIECES), ""
    for count, id in enumerate(ids, start=1):
        shown += pieces.push(id)
        assert shown == decode_pieces(ids[:count], PIECES)
