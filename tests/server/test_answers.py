"""Turns, answers, cancels and tools through the socket, with models whose words are written down."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.scripted import spelt
from tests.server.answering import BOS, EOS, PAD, saying, words
from tests.server.client import Client, Event, asking_for, client, joined, sound
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.server.limits import Limits
from voicechat_mlx.server.running import running
from voicechat_mlx.server.service import Service

FRAME = 1280
TIME = {"type": "function", "name": "get_time", "description": "Tells the time", "parameters": {}}
FRAMES = asking_for("frames")


@contextmanager
def talking(load: Callable[[], VoiceChat], session: Event = FRAMES, **limits: Any) -> Iterator[Client]:
    service = Service(load=load, model_name="scripted", limits=Limits(**limits))
    with running(service) as url, client(url, session) as found:
        yield found


def silence(frames: float) -> bytes:
    """As much as completes so many frames: the last one needs 200 samples of the next."""
    return bytes(2 * round(frames * FRAME))


def test_a_spoken_turn_is_told_in_openais_order_and_ends_with_the_answer() -> None:
    text = [PAD, PAD, PAD, BOS, *words("Hi"), PAD, EOS]
    with talking(saying(text)) as found:
        found.append(silence(3))
        found.send("input_audio_buffer.commit")
        found.send("response.create")
        events = found.until("response.done")
    leave_out = ("voicechat.", "input_audio_buffer.", "conversation.item.input_audio_transcription.delta")
    order = dict.fromkeys(event["type"] for event in events if not event["type"].startswith(leave_out))
    assert list(order) == [
        "conversation.item.added",
        "response.created",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_audio.delta",
        "response.output_audio_transcript.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.completed",
        "response.done",
    ]
    assert joined(events, "response.output_audio_transcript.delta") == "Hi"
    response = events[-1]["response"]
    assert response["status"] == "completed"
    assert response["output"][0]["content"] == [{"type": "output_audio", "transcript": "Hi"}]
    frames = [event["frame"] for event in events if event["type"] == "voicechat.frame"]
    assert frames == list(range(len(text)))  # the turn ends with the frame of EOS, neither sooner nor later
    assert len(sound(events)) == 1764 * (len(text) - 1)  # all that was said before EOS


def test_silence_that_nobody_answers_ends_after_quiet_seconds() -> None:
    with talking(saying([]), quiet_seconds=0.4) as found:
        found.send("response.create")
        events = found.until("response.done")
    assert sum(event["type"] == "voicechat.frame" for event in events) == 5  # 0.4 s / 0.08 s
    assert events[-1]["response"]["status"] == "completed"


def test_silence_under_an_endless_answer_ends_after_answer_seconds() -> None:
    with talking(saying([BOS, *words("a" * 60)]), answer_seconds=0.8) as found:
        found.send("response.create")
        events = found.until("response.done")
    assert sum(event["type"] == "voicechat.frame" for event in events) == 10


def test_one_answer_at_a_time() -> None:
    with talking(saying([BOS, *words("a" * 500)])) as found:
        found.send("response.create")
        found.until("response.created")
        found.send("response.create", event_id="again")
        error = found.error()
    assert (error["code"], error["event_id"]) == ("conversation_already_has_active_response", "again")


def test_a_second_turn_has_items_of_its_own_that_follow_the_first() -> None:
    with talking(saying([BOS, *words("One"), EOS, PAD, BOS, *words("Two"), EOS])) as found:
        found.send("response.create")
        first = found.until("response.done")
        found.send("response.create")
        second = found.until("response.done")
    assert [joined(events, "response.output_audio_transcript.delta") for events in (first, second)] == ["One", "Two"]
    added = [event for event in [*first, *second] if event["type"] == "conversation.item.added"]
    ids = [event["item"]["id"] for event in added]
    assert len(set(ids)) == 4
    assert [event["previous_item_id"] for event in added] == [None, *ids[:-1]]
    assert [event["item"]["role"] for event in added] == ["user", "assistant"] * 2
    assert first[-1]["response"]["id"] != second[-1]["response"]["id"]


def test_a_cancelled_answer_is_not_heard_any_more_and_the_next_one_is() -> None:
    long = words("I was going to say something long")
    text = [BOS, *long, EOS, PAD, BOS, *words("Yes"), EOS]
    with talking(saying(text)) as found:
        found.send("response.create")
        found.until("response.output_audio_transcript.delta")
        found.send("response.cancel")
        cancelled = found.until("response.done")[-1]["response"]
        said = cancelled["output"][0]["content"][0]["transcript"]
        found.append(silence(len(text) + 1))
        after = found.finish()
    assert (cancelled["status"], cancelled["status_details"]["reason"]) == ("cancelled", "client_cancelled")
    assert cancelled["output"][0]["status"] == "incomplete"
    assert said and "I was going to say something long".startswith(said)
    assert joined(after, "response.output_audio_transcript.delta") == "Yes"
    assert after[-1]["text"] == "I was going to say something longYes"  # what the model said, as offline
    deltas = [event for event in after if event["type"] == "response.output_audio.delta"]
    muted = [event for event in deltas if event["frame"] <= len(long)]  # up to the frame before EOS
    assert len(muted) > 3 and not np.any(sound(muted))
    assert np.any(sound(deltas[len(muted) :]))


def test_a_cancel_overtakes_the_audio_that_waits() -> None:
    with talking(saying([])) as found:
        found.append(silence(200))
        found.until("voicechat.frame")
        found.send("response.cancel")
        events = found.until("response.done")
        frames = [event["frame"] for event in events if event["type"] == "voicechat.frame"]
        assert events[-1]["response"]["status"] == "cancelled"
        assert len(frames) < 150
        found.send("input_audio_buffer.clear")
        dropped = found.until("input_audio_buffer.cleared")[-1]["dropped_seconds"]
        assert 0 < dropped < 16
        heard = found.finish()[-1]["input_seconds"]
    assert abs(heard + dropped - 16) < 0.001


def test_nothing_open_is_nothing_to_cancel() -> None:
    with talking(saying([])) as found:
        found.send("response.cancel", event_id="e")
        assert found.error()["code"] == "response_cancel_not_active"
        found.append(silence(3))
        found.until("response.created")
        found.send("response.cancel", response_id="resp_99")
        assert found.error()["code"] == "response_cancel_not_active"


def test_a_call_of_a_function_is_answered_and_the_talk_goes_on() -> None:
    call = spelt('[{"name": "get_time", "arguments": {"zone": "UTC"}}]')
    session = asking_for("ids", tools=[TIME])
    with talking(saying([PAD] * len(call), call), session) as found:
        found.send("response.create")
        events = found.until("response.done")
        done = next(event for event in events if event["type"] == "response.function_call_arguments.done")
        assert (done["name"], json.loads(done["arguments"])) == ("get_time", {"zone": "UTC"})
        output = events[-1]["response"]["output"]
        assert [item["type"] for item in output] == ["message", "function_call"]
        assert output[1]["call_id"] == done["call_id"]
        item = {"type": "function_call_output", "call_id": done["call_id"], "output": '{"hour": 3}'}
        found.send("conversation.item.create", item=item)
        assert found.until("conversation.item.done")[-1]["item"]["output"] == '{"hour": 3}'
        found.send("conversation.item.create", item=item, event_id="twice")
        error = found.error()
        assert (error["code"], error["event_id"]) == ("tool_result_duplicate_id", "twice")
        last = found.finish(extra_seconds=6.0)[-1]
    written = words('<TOOL_RESPONSE>[{"hour": 3}]</TOOL_RESPONSE>')
    assert last["function_tokens"][: len(call) + len(written) + 1] == [*call, *written, 22]


def test_results_that_belong_to_no_call_are_refused() -> None:
    item = {"type": "function_call_output", "call_id": "call_0", "output": "1"}
    for session in (asking_for(), asking_for(tools=[TIME])):
        with talking(saying([]), session) as found:
            found.send("conversation.item.create", item=item)
            assert found.error()["code"] == "tool_result_unknown_id"
            found.append(silence(2))
            found.until("response.output_audio.delta")
            found.send("conversation.item.create", item=item)
            assert found.error()["code"] == "tool_result_unknown_id"
            assert found.finish()[-1]["reason"] == "finished"


def test_a_malformed_call_is_an_error_event_and_the_talk_goes_on() -> None:
    call = spelt("[not json]")
    with talking(saying([PAD] * len(call), call), asking_for(tools=[TIME])) as found:
        found.append(silence(len(call) + 2))
        error = found.error()
        assert (error["type"], error["code"]) == ("server_error", "tool_call_malformed")
        assert found.finish()[-1]["reason"] == "finished"
