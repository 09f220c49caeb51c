"""The protocol on the function channel, id by id, without a model: when a call is made, when a result is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from fixtures.tiny_config import tiny_config
from tests.models import tokenizer
from voicechat_mlx import InputError, ToolCall, ToolCallFailed, ToolError, ToolLimits
from voicechat_mlx.config import VoiceChatConfig
from voicechat_mlx.events import Event
from voicechat_mlx.tools.exchange import ToolExchange

PAD, START, END, RESPONSE_END = 12, 20, 21, 22
FAILED = '{"error": "failed"}'
CONFIG = VoiceChatConfig.from_dict(tiny_config({}))
FRAME_SECONDS = 0.08


def ids(text: str) -> list[int]:
    return tokenizer().encode(text)


def spelt(calls: str) -> list[int]:
    """A call as the model emits it, markers included."""
    return [START, *ids(f"<TOOLCALL>{calls}</TOOLCALL>"), END]


def written(*results: str) -> list[int]:
    """What is forced for these results, to the last id."""
    return [*ids(f"<TOOL_RESPONSE>[{', '.join(results)}]</TOOL_RESPONSE>"), RESPONSE_END]


def calls_to(*names: str) -> str:
    return "[" + ", ".join(f'{{"name": "{name}", "arguments": {{}}}}' for name in names) + "]"


@dataclass
class Channel:
    """A function channel: the model's own ids where nothing is forced."""

    exchange: ToolExchange
    ids: list[int] = field(default_factory=list)
    forced: list[int] = field(default_factory=list)
    """The frames that were written from outside."""
    events: list[Event] = field(default_factory=list)

    def run(self, model: Iterable[int]) -> None:
        """One frame for each id; one that is overwritten is lost, as in the loop."""
        for own in model:
            id = self.exchange.next_id()
            if id is not None:
                self.forced.append(len(self.ids))
            self.ids.append(own if id is None else id)
            self.exchange.read(self.ids[-1])
            self.events += self.exchange.take_events(len(self.ids) - 1)

    def rest(self, frames: int = 400) -> None:
        self.run([PAD] * frames)

    @property
    def calls(self) -> list[ToolCall]:
        return [event for event in self.events if isinstance(event, ToolCall)]

    @property
    def faults(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, ToolCallFailed)]

    @property
    def wrote(self) -> list[int]:
        return [self.ids[frame] for frame in self.forced]


def channel(
    on_tool: Callable[[ToolCall], Any] | None = None, names: Iterable[str] | None = None, **limits: Any
) -> Channel:
    allowed = None if names is None else frozenset(names)
    exchange = ToolExchange(CONFIG, tokenizer(), names=allowed, on_tool=on_tool, limits=ToolLimits(**limits))
    return Channel(exchange)


# A call and its result


def test_a_result_of_the_callback_is_written_from_the_frame_after_the_call_on() -> None:
    talk = channel(lambda call: {"hour": 3})
    call = spelt(calls_to("get_time"))
    talk.run([PAD, PAD, *call])
    talk.rest()
    assert talk.events == [ToolCall(frame=1 + len(call), id="call_0", name="get_time", arguments={})]
    response = written('{"hour": 3}')
    assert talk.wrote == response
    assert talk.forced == list(range(2 + len(call), 2 + len(call) + len(response)))


def test_pad_may_lie_between_the_ids_of_a_call() -> None:
    talk = channel(lambda call: None)
    talk.run([id for own in spelt(calls_to("get_time")) for id in (own, PAD, PAD)])
    assert [call.name for call in talk.calls] == ["get_time"]


def test_a_call_of_bytes_that_are_no_whole_tokens_is_read_as_text() -> None:
    talk = channel(lambda call: None)
    talk.run(spelt('[{"name": "get_weather", "arguments": {"city": "Zürich 🙂"}}]'))
    assert talk.calls[0].arguments == {"city": "Zürich 🙂"}


def test_a_result_may_come_later_and_takes_effect_on_the_next_frame() -> None:
    talk = channel()
    talk.run(spelt(calls_to("get_time")))
    talk.rest(50)
    assert talk.forced == []
    added = len(talk.ids)
    talk.exchange.add_result("call_0", {"hour": 3})
    talk.rest()
    assert talk.forced[0] == added
    assert talk.wrote == written('{"hour": 3}')


def test_results_of_one_list_go_back_together_in_the_order_of_the_calls() -> None:
    talk = channel()
    talk.run(spelt(calls_to("a", "b", "c")))
    for id, result in (("call_2", "third"), ("call_0", "first")):
        talk.exchange.add_result(id, result)
        talk.rest(5)
    assert talk.forced == []
    talk.exchange.add_result("call_1", "second")
    talk.rest()
    assert talk.wrote == written('"first"', '"second"', '"third"')


def test_lists_are_answered_as_they_are_complete() -> None:
    talk = channel()
    talk.run(spelt(calls_to("slow")))
    talk.run(spelt(calls_to("fast")))
    talk.exchange.add_result("call_1", 1)
    talk.rest()
    talk.exchange.add_result("call_0", 0)
    talk.rest()
    assert talk.wrote == written("1") + written("0")


def test_a_result_waits_while_the_model_spells_another_call() -> None:
    talk = channel()
    talk.run(spelt(calls_to("first")))
    other = spelt(calls_to("second"))
    talk.run(other[:5])
    talk.exchange.add_result("call_0", 1)
    talk.run(other[5:])
    assert [call.name for call in talk.calls] == ["first", "second"]
    assert talk.forced == []
    talk.rest()
    assert talk.wrote == written("1")


def test_what_is_written_is_not_taken_for_a_call() -> None:
    talk = channel(lambda call: "<TOOLCALL>")
    talk.run(spelt(calls_to("a")))
    talk.rest()
    assert len(talk.events) == 1


def test_markers_out_of_place_and_other_ids_mean_nothing() -> None:
    talk = channel(lambda call: None)
    talk.run([END, RESPONSE_END, *ids("hello"), END, PAD, 11, 1, 2])
    talk.rest()
    assert talk.events == []
    assert talk.forced == []


# Faults of the model


@pytest.mark.parametrize("text", ["", "hello", "<TOOLCALL>[{</TOOLCALL>", "<TOOLCALL>[]</TOOLCALL>"])
def test_a_malformed_call_is_answered_as_failed_and_the_next_one_works(text: str) -> None:
    talk = channel(lambda call: 1)
    talk.run([START, *ids(text), END])
    talk.rest()
    assert talk.faults == ["malformed"]
    talk.run(spelt(calls_to("a")))
    talk.rest()
    assert talk.wrote == written(FAILED) + written("1")


def test_in_a_list_only_the_call_at_fault_fails() -> None:
    talk = channel(lambda call: call.name, names=["a", "c"])
    talk.run(spelt(calls_to("a", "b", "c")))
    talk.rest()
    assert [type(event) for event in talk.events] == [ToolCall, ToolCallFailed, ToolCall]
    assert [call.id for call in talk.calls] == ["call_0", "call_1"]
    assert talk.faults == ["unknown_tool"]
    assert talk.wrote == written('"a"', FAILED, '"c"')


def test_a_call_inside_a_call_drops_the_first() -> None:
    talk = channel(lambda call: 1)
    talk.run([START, *ids("<TOOL"), *spelt(calls_to("a"))])
    assert talk.faults == ["malformed"]
    assert [call.name for call in talk.calls] == ["a"]


def test_a_call_with_too_many_tokens_is_ended_and_answered_as_failed() -> None:
    talk = channel(call_tokens=10)
    talk.run([START, *[ids("x")[0], PAD] * 30])
    assert talk.faults == ["too_long"]
    assert talk.events[0].frame == 21  # START, then ten of (x, PAD), then the eleventh x
    assert talk.forced[0] == 22
    talk.rest()
    assert talk.wrote == [END, *written(FAILED)]


def test_a_call_that_takes_too_long_is_ended_and_answered_as_failed() -> None:
    """1.6 s are 20 frames."""
    talk = channel(call_seconds=1.6)
    talk.run([START])
    talk.rest()
    assert talk.faults == ["too_slow"]
    assert talk.events[0].frame == 20
    assert talk.wrote == [END, *written(FAILED)]


def test_the_longest_call_allowed_is_made() -> None:
    call = spelt(calls_to("a"))
    talk = channel(lambda call: 1, call_tokens=len(call) - 2, call_seconds=len(call) * FRAME_SECONDS)
    talk.run(call)
    assert talk.faults == []
    assert len(talk.calls) == 1


def test_a_call_that_the_talk_cuts_off_is_unfinished() -> None:
    talk = channel()
    talk.run(spelt(calls_to("a"))[:-1])
    assert [(event.reason, event.frame) for event in talk.exchange.finish()] == [("unfinished", len(talk.ids) - 1)]


# Faults of tools and callers


def refused(talk: Channel, id: Any, result: object = 1) -> str:
    with pytest.raises(ToolError) as caught:
        talk.exchange.add_result(id, result)
    assert "\n" not in str(caught.value)
    return caught.value.reason


def test_an_exception_of_the_callback_costs_only_its_call() -> None:
    def tool(call: ToolCall) -> str:
        if call.name == "bad":
            raise RuntimeError("no network")
        return "fine"

    talk = channel(tool)
    talk.run(spelt(calls_to("bad", "good")))
    talk.rest()
    assert talk.faults == ["callback_failed"]
    (fault,) = (event for event in talk.events if isinstance(event, ToolCallFailed))
    assert fault.id == "call_0"
    assert "no network" in fault.text
    assert talk.wrote == written(FAILED, '"fine"')


@pytest.mark.parametrize(
    ("result", "reason"), [(object(), "not_json"), ("x" * 10**6, "too_large")], ids=["object", "long"]
)
def test_a_result_of_the_callback_that_cannot_be_written_fails_the_call(result: object, reason: str) -> None:
    talk = channel(lambda call: result)
    talk.run(spelt(calls_to("a")))
    talk.rest()
    assert talk.faults == [reason]
    assert talk.wrote == written(FAILED)


def test_an_interruption_of_the_callback_is_not_swallowed() -> None:
    def tool(call: ToolCall) -> None:
        raise KeyboardInterrupt

    talk = channel(tool)
    with pytest.raises(KeyboardInterrupt):
        talk.run(spelt(calls_to("a")))


@pytest.mark.parametrize("id", ["call_1", "", "CALL_0", None, 0, ["call_0"]], ids=repr)
def test_an_unknown_id_is_refused(id: Any) -> None:
    talk = channel()
    talk.run(spelt(calls_to("a")))
    assert refused(talk, id) == "unknown_id"
    talk.exchange.add_result("call_0", 1)


def test_a_second_result_is_refused_before_and_after_the_first_is_written() -> None:
    talk = channel()
    talk.run(spelt(calls_to("a")))
    talk.exchange.add_result("call_0", 1)
    assert refused(talk, "call_0", 2) == "duplicate_id"
    talk.rest()
    assert refused(talk, "call_0", 2) == "duplicate_id"
    assert talk.wrote == written("1")


def test_a_result_that_does_not_come_fails_in_its_time_and_is_late_then() -> None:
    """0.8 s are 10 frames after the one in which the call ended."""
    talk = channel(result_seconds=0.8)
    talk.run(spelt(calls_to("a", "b")))
    ended = len(talk.ids) - 1
    talk.exchange.add_result("call_1", "in time")
    talk.rest()
    assert talk.faults == ["no_result"]
    assert talk.events[-1].frame == ended + 10
    assert talk.wrote == written(FAILED, '"in time"')
    assert refused(talk, "call_0") == "late"
    assert refused(talk, "call_1") == "duplicate_id"


@pytest.mark.parametrize(
    ("result", "reason"),
    [(math.nan, "not_json"), (object(), "not_json"), ("ab " * 400, "too_large"), (["x"] * 10**5, "too_large")],
    ids=["nan", "object", "400 words", "a list"],
)
def test_a_result_that_is_refused_may_be_given_again(result: object, reason: str) -> None:
    talk = channel()
    talk.run(spelt(calls_to("a")))
    assert refused(talk, "call_0", result) == reason
    talk.exchange.add_result("call_0", "shorter")
    talk.rest()
    assert talk.wrote == written('"shorter"')


def test_a_result_may_have_as_many_tokens_as_allowed_and_no_more() -> None:
    size = len(ids('"abcdefg"'))
    for most, fits in ((size, True), (size - 1, False)):
        talk = channel(lambda call: "abcdefg", result_tokens=most)
        talk.run(spelt(calls_to("a")))
        assert (talk.faults == []) is fits


@pytest.mark.parametrize("result", ["", None, {}, "</TOOL_RESPONSE>", "</s><SPECIAL_22>", "🙂", "\ud83d"], ids=repr)
def test_a_response_ends_once_whatever_the_result_holds(result: object) -> None:
    talk = channel(lambda call: result)
    talk.run(spelt(calls_to("a")))
    talk.rest()
    assert talk.faults == []
    assert talk.wrote.count(RESPONSE_END) == 1
    assert [id for id in talk.wrote if id < 24] == [RESPONSE_END]
    text = tokenizer().decode(talk.wrote[:-1])
    assert text.count("</TOOL_RESPONSE>") == 1


def test_calls_that_wait_when_the_talk_ends_are_named() -> None:
    talk = channel()
    talk.run(spelt(calls_to("a", "b")))
    talk.exchange.add_result("call_0", 1)
    assert [(event.reason, event.id) for event in talk.exchange.finish()] == [("no_result", "call_1")]


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "8", None])
def test_a_limit_must_be_a_number_above_zero(value: Any) -> None:
    for name in ("call_tokens", "call_seconds", "calls", "result_tokens", "result_seconds"):
        with pytest.raises(InputError, match=name):
            ToolLimits(**{name: value})
