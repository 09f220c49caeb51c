"""A session's dealings with tools: calls are read off the function channel, results are written into it.

    model    20 <TOOLCALL>[…]</TOOLCALL> 21                         PAD may lie between
    caller                                   … result …
    forced                                                <TOOL_RESPONSE>[…]</TOOL_RESPONSE> 22

One id a frame, text at PAD meanwhile. Everything is counted in frames, never by a clock on the wall, so the same sound
and the same results at the same frames give the same talk. A fault costs a call, never the conversation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from voicechat_mlx.config import VoiceChatConfig
from voicechat_mlx.errors import CallFault, InputError, ToolError
from voicechat_mlx.events import Event, ToolCall, ToolCallFailed
from voicechat_mlx.text import TextTokenizer
from voicechat_mlx.tools.protocol import FAILED, Call, Spelling, quote, read_calls, response

OnTool = Callable[[ToolCall], Any]
HIGHEST_LIMIT = 100_000
CHARACTERS_A_TOKEN = 64
"""A result with more characters than this for each token allowed is refused before it is cut into tokens."""


@dataclass(frozen=True, kw_only=True)
class ToolLimits:
    """What a tool may cost. Seconds are seconds of the talk: 80 ms a frame."""

    call_tokens: int = 256
    """Ids between the markers of a call, PAD not counted."""
    call_seconds: float = 30.0
    """From a call's first marker to its last."""
    calls: int = 8
    """Calls in one list."""
    result_tokens: int = 256
    """Ids of one result: writing it takes 80 ms each, in which the assistant is silent."""
    result_seconds: float = 60.0
    """From a call to its result."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int | float) or not 0 < value <= HIGHEST_LIMIT:
                raise InputError(f"tool limit {name} is {quote(value)}; give a number above 0, up to {HIGHEST_LIMIT}")


@dataclass(eq=False)
class _List:
    """The calls of one list: their results go back together."""

    deadline: int
    """The frame at which results that are missing count as failed."""
    ids: list[str | None] = field(default_factory=list)
    """None where a fault stands in a call's place."""
    results: list[str | None] = field(default_factory=list)
    """JSON; None while it is awaited."""

    @property
    def complete(self) -> bool:
        return None not in self.results

    @property
    def awaited(self) -> list[str]:
        return [id for id, result in zip(self.ids, self.results, strict=True) if id is not None and result is None]


class ToolExchange:
    """Reads the function channel frame by frame and writes into it: a `pipeline.Writer`."""

    def __init__(
        self,
        config: VoiceChatConfig,
        tokenizer: TextTokenizer,
        *,
        names: frozenset[str] | None = None,
        on_tool: OnTool | None = None,
        limits: ToolLimits | None = None,
    ) -> None:
        """`names` None allows every tool. `on_tool` answers calls at once; else `add_result` does, sooner or later.

        Raises InputError for an `on_tool` or `limits` that is neither None nor of its kind.
        """
        if on_tool is not None and not callable(on_tool):
            raise InputError(f"on_tool is {quote(on_tool)}; give a function of one ToolCall")
        if not isinstance(limits, ToolLimits | None):
            raise InputError(f"tool_limits is {quote(limits)}; give ToolLimits(…)")
        self._config, self._tokenizer, self._names, self._on_tool = config, tokenizer, names, on_tool
        self._limits = limits or ToolLimits()
        self._spelling = Spelling(tokenizer.special_tokens)
        self._frame = 0
        """The frame that is read next."""
        self._call: list[int] | None = None
        """Ids of the call that the model is spelling."""
        self._call_begun = 0
        self._lists: list[_List] = []
        self._to_write: deque[int] = deque()
        self._writing = False
        """Whether the frame that is read next was written from outside."""
        self._issued = 0
        self._late: set[str] = set()
        self._events: deque[Event] = deque()

    def next_id(self) -> int | None:
        """The function id of the next frame; None leaves it to the model."""
        if not self._to_write and self._call is None:
            self._write_next_response()
        self._writing = bool(self._to_write)
        return self._to_write.popleft() if self._to_write else None

    def read(self, id: int) -> None:
        """The function id that the next frame came to."""
        if not self._writing:
            self._read_from_model(id)
        self._give_up_waiting()
        self._frame += 1

    def take_events(self, frame: int) -> list[Event]:
        """What happened up to that frame, once."""
        taken: list[Event] = []
        while self._events and self._events[0].frame <= frame:
            taken.append(self._events.popleft())
        return taken

    def add_result(self, id: str, result: object) -> None:
        """The result of a call, anything that JSON can say. Raises ToolError; the call then still waits."""
        waiting = next((calls for calls in self._lists if id in calls.awaited), None)
        if waiting is None:
            raise self._not_awaited(id)
        waiting.results[waiting.ids.index(id)] = self._spelt(result)

    def finish(self) -> list[Event]:
        """The talk is over: what is left open comes to nothing."""
        self._frame = max(0, self._frame - 1)
        if self._call is not None:
            self._fail("unfinished", "the talk ended in the middle of a call")
        for id in (id for calls in self._lists for id in calls.awaited):
            self._fail("no_result", f"the talk ended before the result of {id}", id)
        return self.take_events(self._frame)

    def _read_from_model(self, id: int) -> None:
        config = self._config
        if id == config.call_start_token_id:
            if self._call is not None:
                self._fail("malformed", "a call began inside a call; the first is dropped")
            self._call, self._call_begun = [], self._frame
        elif self._call is None:
            return
        elif id == config.call_end_token_id:
            text, self._call = self._tokenizer.decode(self._call), None
            self._make_calls(text)
        else:
            if id not in config.silent_token_ids:
                self._call.append(id)
            self._give_up_reading()

    def _give_up_reading(self) -> None:
        """End a call that is too long for the model, so that it can go on."""
        limits = self._limits
        if self._call is not None and len(self._call) > limits.call_tokens:
            self._fail("too_long", f"a call has more than {limits.call_tokens} tokens")
        elif self._frame - self._call_begun >= self._frames(limits.call_seconds):
            self._fail("too_slow", f"a call took more than {limits.call_seconds:g} s")
        else:
            return
        self._call = None
        self._to_write.append(self._config.call_end_token_id)
        self._write([FAILED])

    def _make_calls(self, text: str) -> None:
        calls = _List(self._frame + self._frames(self._limits.result_seconds))
        self._lists.append(calls)
        for found in read_calls(text, self._names, self._limits.calls):
            if isinstance(found, Call):
                event = ToolCall(
                    frame=self._frame, id=f"call_{self._issued}", name=found.name, arguments=found.arguments
                )
                self._issued += 1
                self._events.append(event)
                calls.ids.append(event.id)
                calls.results.append(self._answered(event))
            else:
                self._fail(found.reason, found.text)
                calls.ids.append(None)
                calls.results.append(FAILED)

    def _answered(self, call: ToolCall) -> str | None:
        """What the callback says; None without one."""
        if self._on_tool is None:
            return None
        try:
            result = self._on_tool(call)
        except Exception as error:  # whatever a tool does wrong, the conversation goes on
            self._fail("callback_failed", f"{quote(call.name)} raised {quote(error)}", call.id)
            return FAILED
        try:
            return self._spelt(result)
        except ToolError as error:
            self._fail("too_large" if error.reason == "too_large" else "not_json", str(error), call.id)
            return FAILED

    def _give_up_waiting(self) -> None:
        for calls in self._lists:
            if self._frame < calls.deadline:
                continue
            for id in calls.awaited:
                self._late.add(id)
                self._fail("no_result", f"no result for {id} in {self._limits.result_seconds:g} s", id)
            calls.results = [result or FAILED for result in calls.results]

    def _write_next_response(self) -> None:
        ready = next((calls for calls in self._lists if calls.complete), None)
        if ready is not None:
            self._lists.remove(ready)
            self._write(result or FAILED for result in ready.results)

    def _write(self, results: Iterable[str]) -> None:
        self._to_write.extend(self._tokenizer.encode(response(results)))
        self._to_write.append(self._config.response_end_token_id)

    def _spelt(self, result: object) -> str:
        """A result as JSON. Raises ToolError."""
        text, most = self._spelling.json(result), self._limits.result_tokens
        if len(text) > most * CHARACTERS_A_TOKEN or len(self._tokenizer.encode(text)) > most:
            raise ToolError(f"the result {quote(text)} has more than {most} tokens; give a shorter one", "too_large")
        return text

    def _not_awaited(self, id: object) -> ToolError:
        if not isinstance(id, str):
            return ToolError(f"{quote(id)} is no id of a call; take it from the ToolCall event", "unknown_id")
        if id in self._late:
            return ToolError(f"the result of {id} is late; the model was told that it failed", "late")
        if id in (f"call_{number}" for number in range(self._issued)):
            return ToolError(f"{id} has its result already; give each call one", "duplicate_id")
        return ToolError(f"no call has the id {quote(id)}; take it from the ToolCall event", "unknown_id")

    def _fail(self, reason: CallFault, text: str, id: str | None = None) -> None:
        self._events.append(ToolCallFailed(frame=self._frame, reason=reason, text=text, id=id))

    def _frames(self, seconds: float) -> int:
        return max(1, round(seconds / self._config.frame_duration))
