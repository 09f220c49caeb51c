"""A conversation as the wire tells it: session events → items, responses and deltas. No MLX, no network, no clock.

A turn has one user item, one response with one assistant message, and the calls of functions. docs/online.md says when
it begins and ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from voicechat_mlx import events
from voicechat_mlx.server import messages
from voicechat_mlx.server.ids import Ids
from voicechat_mlx.server.messages import Item, Message
from voicechat_mlx.server.protocol import ToolOutput
from voicechat_mlx.server.reports import Step, Totals
from voicechat_mlx.server.resampling import PcmWriter
from voicechat_mlx.server.settings import Settings, audio_format
from voicechat_mlx.server.talk import FRAME_SECONDS


class _Turn:
    """What has been said so far between one end and the next."""

    def __init__(self, ids: Ids) -> None:
        self.user_id = ids.next("item")
        self.response_id = ids.next("resp")
        self.message_id = ids.next("item")
        self.answers = False
        """Whether `response.created` was sent; a commit may name the user's item before that."""
        self.heard = ""
        self.said = ""
        self.frames = 0
        self.calls: list[Item] = []

    @property
    def place(self) -> dict[str, Any]:
        """Fields of what belongs to the speech of the message."""
        return {"response_id": self.response_id, "output_index": 0, "item_id": self.message_id}

    def user(self, status: str) -> Item:
        """The user's item."""
        content = [{"type": "input_audio", "transcript": self.heard or None}]
        return {**_message(self.user_id, "user", status), "content": content}

    def assistant(self, status: str) -> Item:
        """The assistant's item."""
        content = [] if status == "in_progress" else [{"type": "output_audio", "transcript": self.said}]
        return {**_message(self.message_id, "assistant", status), "content": content}


class Turns:
    """Renders one conversation. Every method returns what is to be sent, in order."""

    def __init__(self, settings: Settings, ids: Ids, conversation_id: str) -> None:
        self.settings = settings
        """Its `include` may be replaced while the talk goes on."""
        self._ids, self._conversation_id = ids, conversation_id
        self._writer = PcmWriter(settings.output_rate)
        self._turn: _Turn | None = None
        self._last_item: str | None = None
        self._transcript, self._text, self._function = "", "", ""

    @property
    def response_id(self) -> str | None:
        """Of the turn that is open."""
        return self._turn.response_id if self._turn and self._turn.answers else None

    def commit(self) -> list[Message]:
        """The user's item of the turn that is open now, or of the next one."""
        added = [] if self._turn else list(self._begin())
        assert self._turn is not None
        return [*added, messages.Committed(item_id=self._turn.user_id, previous_item_id=self._before_user)]

    def take(self, step: Step) -> list[Message]:
        """What frames brought."""
        sent: list[Message] = []
        if step.events and not (self._turn and self._turn.answers):
            sent += self._answer()
        if self._turn is not None:
            self._turn.frames += step.frames
        for event in step.events:
            sent += self._render(event, muted=step.muted)
        if step.totals is not None:
            sent += self._sound(self._writer.finish(), step.first_frame + step.frames - 1)
        if "frames" in self.settings.include:
            sent += _reports(step)
        if step.totals is not None:
            limited = step.totals.reason == "limit"
            return [*sent, *self.end("incomplete" if limited else "completed"), self._finished(step.totals)]
        return [*sent, *(self.end("completed") if step.ends else ())]

    def end(self, status: str, error: dict[str, Any] | None = None) -> list[Message]:
        """Close the turn that is open: `completed`, `cancelled`, `incomplete` or `failed`."""
        turn, self._turn = self._turn, None
        if turn is None:
            return []
        sent: list[Message] = []
        if turn.answers:
            sent += self._end_message(turn, "completed" if status == "completed" else "incomplete")
        usage = {"type": "duration", "seconds": round(turn.frames * FRAME_SECONDS, 2)}
        sent.append(messages.UserCompleted(item_id=turn.user_id, transcript=turn.heard, usage=usage))
        sent.append(messages.ItemDone(previous_item_id=self._before_user, item=turn.user("completed")))
        if turn.answers:
            output = [turn.assistant("completed" if status == "completed" else "incomplete"), *turn.calls]
            sent.append(messages.ResponseDone(response=self._response(turn, status, output, error)))
        return sent

    def tool_result(self, request: ToolOutput) -> list[Message]:
        """A `function_call_output` that was taken."""
        item = {"id": request.item_id or self._ids.next("item"), "object": "realtime.item", "status": "completed"}
        item |= {"type": "function_call_output", "call_id": request.call_id, "output": request.output}
        before, self._last_item = self._last_item, item["id"]
        return [
            messages.ItemAdded(previous_item_id=before, item=item),
            messages.ItemDone(previous_item_id=before, item=item),
        ]

    def _begin(self) -> Iterator[Message]:
        self._turn = turn = _Turn(self._ids)
        self._before_user, self._last_item = self._last_item, turn.user_id
        yield messages.ItemAdded(previous_item_id=self._before_user, item=turn.user("in_progress"))

    def _answer(self) -> Iterator[Message]:
        if self._turn is None:
            yield from self._begin()
        turn = self._turn
        assert turn is not None
        turn.answers = True
        before, self._last_item = self._last_item, turn.message_id
        item = turn.assistant("in_progress")
        yield messages.ResponseCreated(response=self._response(turn, "in_progress", []))
        yield messages.OutputItemAdded(response_id=turn.response_id, output_index=0, item=item)
        yield messages.ItemAdded(previous_item_id=before, item=item)
        yield messages.PartAdded(**turn.place, part={"type": "audio", "transcript": ""})

    def _end_message(self, turn: _Turn, status: str) -> Iterator[Message]:
        item = turn.assistant(status)
        yield messages.AudioDone(**turn.place)
        yield messages.TranscriptDone(**turn.place, transcript=turn.said)
        yield messages.PartDone(**turn.place, part={"type": "audio", "transcript": turn.said})
        yield messages.OutputItemDone(response_id=turn.response_id, output_index=0, item=item)
        yield messages.ItemDone(previous_item_id=turn.user_id, item=item)

    def _render(self, event: events.Event, *, muted: bool) -> Iterator[Message]:
        turn = self._turn
        if turn is None:  # `Done` alone, of a conversation without a frame
            return
        match event:
            case events.TranscriptDelta():
                turn.heard += event.text
                self._transcript += event.text
                yield messages.UserDelta(item_id=turn.user_id, delta=event.text, frame=event.frame)
            case events.TextDelta():
                self._text += event.text
                if not muted:
                    turn.said += event.text
                    yield messages.TranscriptDelta(**turn.place, delta=event.text, frame=event.frame)
            case events.FunctionDelta():
                self._function += event.text
                yield messages.FunctionText(response_id=turn.response_id, delta=event.text, frame=event.frame)
            case events.ToolCall():
                yield from self._call(turn, event)
            case events.ToolCallFailed():
                yield messages.error(f"tool_call_{event.reason}", event.text, param=event.id, server=True)
            case events.Audio():
                samples = np.zeros_like(event.samples) if muted else event.samples
                yield from self._sound(self._writer.write(samples), event.frame)

    def _sound(self, pcm: bytes, frame: int) -> Iterator[Message]:
        if pcm and self._turn is not None:
            yield messages.AudioDelta(**self._turn.place, delta=pcm, frame=frame)

    def _call(self, turn: _Turn, event: events.ToolCall) -> Iterator[Message]:
        arguments = json.dumps(event.arguments, ensure_ascii=False)
        item: Item = {"id": self._ids.next("item"), "object": "realtime.item", "type": "function_call"}
        item |= {"status": "in_progress", "call_id": event.id, "name": event.name, "arguments": ""}
        done = {**item, "status": "completed", "arguments": arguments}
        turn.calls.append(done)
        before, self._last_item = self._last_item, item["id"]
        output: dict[str, Any] = {"response_id": turn.response_id, "output_index": len(turn.calls)}
        place = {**output, "item_id": item["id"], "call_id": event.id}
        yield messages.OutputItemAdded(**output, item=item)
        yield messages.ItemAdded(previous_item_id=before, item=item)
        yield messages.ArgumentsDelta(**place, delta=arguments)
        yield messages.ArgumentsDone(**place, name=event.name, arguments=arguments)
        yield messages.OutputItemDone(**output, item=done)
        yield messages.ItemDone(previous_item_id=before, item=done)

    def _response(self, turn: _Turn, status: str, output: list[Item], error: dict[str, Any] | None = None) -> Item:
        details = {
            "cancelled": {"type": "cancelled", "reason": "client_cancelled"},
            "incomplete": {"type": "incomplete", "reason": "max_output_tokens"},
            "failed": {"type": "failed", "error": error},
        }
        return {
            "id": turn.response_id,
            "object": "realtime.response",
            "status": status,
            "status_details": details.get(status),
            "output": output,
            "conversation_id": self._conversation_id,
            "output_modalities": ["audio"],
            "audio": {"output": {"format": audio_format(self.settings.output_rate), "voice": "Aria"}},
        }

    def _finished(self, totals: Totals) -> Message:
        def plain(ids: Any) -> Any:
            return None if ids is None else ids.tolist()

        return messages.Finished(
            reason=totals.reason,
            frames=totals.frames,
            input_seconds=totals.input_seconds,
            transcript=self._transcript,
            text=self._text,
            function_text=self._function,
            text_tokens=plain(totals.text_tokens),
            function_tokens=plain(totals.function_tokens),
            audio_codes=plain(totals.audio_codes),
        )


def _message(id: str, role: str, status: str) -> Item:
    return {"id": id, "object": "realtime.item", "type": "message", "role": role, "status": status}


def _reports(step: Step) -> Iterator[Message]:
    for frame in range(step.first_frame, step.first_frame + step.frames):
        seconds = round(step.seconds / step.frames, 6)
        yield messages.FrameReport(frame=frame, seconds=seconds, backlog_seconds=round(step.backlog_seconds, 3))
