"""Tools in a session: from the model's call to the result in its function channel, frame by frame."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from tests.models import hasty, speech, tokenizer
from tests.scripted import HASTY_LIMITS, PAD, scripted, spelt, talkative, written
from tests.talks import assert_same, outcome, pieces_of
from voicechat_mlx import Cancelled, InputError, Session, SessionError, ToolCall, ToolCallFailed, ToolError, ToolLimits
from voicechat_mlx.events import Event, FunctionDelta

TIME = {"name": "get_time", "description": "Tells the time", "parameters": {}}
CALL = spelt('[{"name": "get_time", "arguments": {}}]')
RESPONSE = written('{"hour": 3}')
FRAME = 1280
PCM = speech((len(CALL) + len(RESPONSE) + 20) * 0.08)


def hear(session: Session, pcm: np.ndarray = PCM, cuts: Iterable[int] = ()) -> list[Event]:
    events: list[Event] = []
    for piece in pieces_of(pcm, cuts):
        events += session.push(piece)
    return [*events, *session.finish()]


def test_a_result_follows_its_call_on_the_function_channel_while_the_text_is_silent() -> None:
    session = Session(scripted(CALL), "", tools=[TIME], on_tool=lambda call: {"hour": 3})
    events = hear(session)
    begin, end = len(CALL), len(CALL) + len(RESPONSE)
    function = session.function_tokens.tolist()
    assert function[:begin] == CALL
    assert function[begin:end] == RESPONSE
    assert set(function[end:]) == {PAD}
    assert set(session.text_tokens.tolist()[begin:end]) == {PAD}
    assert [event for event in events if isinstance(event, ToolCall | ToolCallFailed)] == [
        ToolCall(frame=begin - 1, id="call_0", name="get_time", arguments={})
    ]
    spoken = "".join(event.text for event in events if isinstance(event, FunctionDelta))
    assert spoken == tokenizer().decode([id for id in function if id != PAD])


def test_what_is_written_goes_into_the_loop_as_if_the_model_had_said_it() -> None:
    """A model that says the response by itself, its text at PAD throughout, speaks on in the same way."""
    silent = {"inference_pad_boost": 1e4}
    forced = Session(scripted(CALL, **silent), "", on_tool=lambda call: {"hour": 3})
    said = Session(scripted([*CALL, *RESPONSE], **silent), "")
    assert_same(outcome(forced, hear(forced)), outcome(said, hear(said)))
    assert set(said.text_tokens.tolist()) == {PAD}


def test_a_result_added_between_pushes_is_written_from_the_next_frame_on() -> None:
    session = Session(scripted(CALL), "", tools=[TIME])
    waited = 4
    session.push(PCM[: (len(CALL) + waited) * FRAME])
    assert session.frames == len(CALL) + waited
    session.add_tool_result("call_0", {"hour": 3})
    session.push(PCM[session.frames * FRAME :])
    begin = len(CALL) + waited
    assert session.function_tokens.tolist()[len(CALL) : begin] == [PAD] * waited
    assert session.function_tokens.tolist()[begin : begin + len(RESPONSE)] == RESPONSE


@pytest.mark.parametrize("size", [799, FRAME + 1, 7 * FRAME])
def test_pushes_of_any_size_write_the_same_results_on_the_same_frames(size: int) -> None:
    """With a callback a whole recording pushed at once gives what single frames give."""

    def answered(cuts: Iterable[int]) -> Any:
        session = Session(scripted([PAD, PAD, *CALL]), "", on_tool=lambda call: {"hour": 3})
        return outcome(session, hear(session, cuts=cuts))

    whole, pieces = answered([]), answered(range(size, len(PCM), size))
    assert_same(pieces, whole)
    kinds = (ToolCall, ToolCallFailed)
    assert [e for e in pieces.events if isinstance(e, kinds)] == [e for e in whole.events if isinstance(e, kinds)]


def test_without_tools_the_function_channel_is_left_alone() -> None:
    session = Session(scripted(CALL), "")
    events = hear(session)
    assert not any(isinstance(event, ToolCall | ToolCallFailed) for event in events)
    assert session.function_tokens.tolist()[len(CALL) :] == [PAD] * (session.frames - len(CALL))
    with pytest.raises(SessionError):
        session.add_tool_result("call_0", 1)


def test_offering_tools_changes_nothing_but_the_prompt() -> None:
    model, pcm = hasty(), speech(1.0)
    offered = (
        '<AVAILABLE_TOOLS>[{"description": "Tells the time", "name": "get_time", "parameters": {}}]</AVAILABLE_TOOLS>'
    )
    for prompt, whole in (("Be brief.", f"Be brief. {offered}"), ("", offered)):
        with_tools, spelt_out = Session(model, prompt, tools=[TIME]), Session(model, whole)
        assert_same(outcome(with_tools, hear(with_tools, pcm)), outcome(spelt_out, hear(spelt_out, pcm)))
        assert with_tools.prompt_tokens == spelt_out.prompt_tokens == len(tokenizer().encode(whole)) + 2


def test_a_call_of_a_tool_that_was_not_offered_fails_and_the_talk_goes_on() -> None:
    session = Session(scripted(CALL), "", tools=[{**TIME, "name": "other"}], on_tool=lambda call: 1)
    events = hear(session)
    assert [event.reason for event in events if isinstance(event, ToolCallFailed)] == ["unknown_tool"]
    failed = written('{"error": "failed"}')
    assert session.function_tokens.tolist()[len(CALL) : len(CALL) + len(failed)] == failed


def test_a_refused_result_leaves_the_session_open_and_the_call_waiting() -> None:
    session = Session(scripted(CALL), "", tools=[TIME])
    session.push(PCM)
    for id, result, reason in (
        ("call_9", 1, "unknown_id"),
        ("call_0", object(), "not_json"),
        ("call_0", "x" * 10**7, "too_large"),
    ):
        with pytest.raises(ToolError) as caught:
            session.add_tool_result(id, result)
        assert caught.value.reason == reason
    session.add_tool_result("call_0", {"hour": 3})
    with pytest.raises(ToolError) as caught:
        session.add_tool_result("call_0", {"hour": 4})
    assert caught.value.reason == "duplicate_id"
    session.push(PCM)
    assert session.function_tokens.tolist()[-len(PCM) // FRAME :].count(RESPONSE[-1]) == 1


def test_a_result_after_the_end_is_a_session_error() -> None:
    session = Session(scripted(CALL), "", tools=[TIME])
    events = hear(session)
    assert [(event.reason, event.id) for event in events if isinstance(event, ToolCallFailed)] == [
        ("no_result", "call_0")
    ]
    with pytest.raises(SessionError, match="finished"):
        session.add_tool_result("call_0", 1)


def test_a_result_that_does_not_come_is_failed_after_its_seconds_of_talk() -> None:
    limits = ToolLimits(result_seconds=0.4)
    session = Session(scripted(CALL), "", tools=[TIME], tool_limits=limits)
    events = hear(session)
    (fault,) = (event for event in events if isinstance(event, ToolCallFailed))
    assert (fault.reason, fault.id, fault.frame) == ("no_result", "call_0", len(CALL) - 1 + 5)


def test_an_interrupted_callback_breaks_the_session_off() -> None:
    def tool(call: ToolCall) -> None:
        raise KeyboardInterrupt

    session = Session(scripted(CALL), "", on_tool=tool)
    with pytest.raises(KeyboardInterrupt):
        session.push(PCM)
    with pytest.raises(SessionError, match="broken off"):
        session.push(PCM)


@pytest.mark.parametrize("tools", ["get_time", [{}], [TIME, TIME], 3], ids=str)
def test_wrong_tools_are_refused_before_anything_is_computed(tools: Any) -> None:
    with pytest.raises(InputError, match="tool"):
        Session(hasty(), "", tools=tools)


@pytest.mark.parametrize("block", [FRAME, len(PCM)], ids=["frame by frame", "at once"])
def test_a_tool_may_cancel_the_talk_that_called_it(block: int) -> None:
    session = Session(scripted(CALL), "", on_tool=lambda call: session.cancel())
    events: list[Event] = []
    for piece in np.split(PCM, range(block, len(PCM), block)):
        if session.is_open:
            events += session.push(piece)
    assert events[-1] == Cancelled(frame=session.frames)
    assert [type(event) for event in events].count(ToolCall) == 1
    assert session.cancel() == []
    with pytest.raises(SessionError, match="was cancelled"):
        session.push(PCM)


def test_a_tool_may_cancel_while_the_last_silence_is_answered() -> None:
    session = Session(scripted(CALL), "", on_tool=lambda call: session.cancel())
    session.push(PCM[: len(CALL) * FRAME - FRAME])
    assert session.finish()[-1] == Cancelled(frame=session.frames)
    assert not session.is_open


def test_a_tool_that_pushes_is_told_why_it_may_not_and_the_talk_goes_on() -> None:
    session = Session(scripted(CALL), "", on_tool=lambda call: session.push(PCM))
    (fault,) = [event for event in hear(session) if isinstance(event, ToolCallFailed)]
    assert fault.reason == "callback_failed"
    assert "push; call it when that has returned" in fault.text


class _Broken(dict):  # type: ignore[type-arg]
    """JSON asks for its items, an error message for its words."""

    def items(self) -> Any:
        raise OSError("the file is gone")

    __repr__ = items


@pytest.mark.parametrize("result", [10**5000, [10**5000], _Broken(a=1)], ids=["long", "long in a list", "broken"])
def test_a_result_that_cannot_even_be_shown_costs_the_call_and_not_the_talk(result: Any) -> None:
    session = Session(scripted(CALL), "", on_tool=lambda call: result)
    (fault,) = [event for event in hear(session) if isinstance(event, ToolCallFailed)]
    assert fault.reason == "not_json"
    assert session.frames == len(PCM) // FRAME + 1


@pytest.mark.parametrize("wrong", [{"on_tool": 5}, {"on_tool": "get_time"}, {"tools": [], "tool_limits": {"calls": 1}}])
def test_a_callback_or_limits_of_another_kind_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"on_tool|tool_limits"):
        Session(hasty(), "", **wrong)


def test_many_faults_one_after_another_never_end_the_talk() -> None:
    session = Session(talkative(), "", tools=[TIME], tool_limits=HASTY_LIMITS)
    events = hear(session, speech(20.0))
    faults = [event for event in events if isinstance(event, ToolCallFailed)]
    assert len(faults) > 3
    assert session.frames == len(session.function_tokens) == 251


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="MLX compiles for a CPU with g++")
def test_compiled_frames_write_the_same_results() -> None:
    found = []
    for compiled in (False, True):
        model = talkative()
        model.run.compiled = compiled
        session = Session(model, "Hello.", tools=[TIME], tool_limits=HASTY_LIMITS)
        pcm = speech(6.0)
        found.append(outcome(session, hear(session, pcm, [FRAME, 2 * FRAME, 3 * FRAME + 7])))
    assert_same(found[1], found[0])
    assert 22 in found[0].function_ids
