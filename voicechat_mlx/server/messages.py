"""What the server says: one frozen dataclass per event of docs/online.md → JSON text.

Fields carry the names of the wire. `frame` and everything whose type begins with `voicechat.` is ours.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, fields
from typing import Any, ClassVar

Item = dict[str, Any]
"""An item of the conversation, or a response, as it stands on the wire."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """Something that the server sends."""

    type: ClassVar[str]

    def to_json(self, event_id: str) -> str:
        """One line; bytes become base64."""
        body: dict[str, Any] = {"type": self.type, "event_id": event_id}
        for part in fields(self):
            value = getattr(self, part.name)
            body[part.name] = base64.b64encode(value).decode() if isinstance(value, bytes) else value
        return json.dumps(body, separators=(",", ":"))


@dataclass(frozen=True, kw_only=True)
class Loading(Message):
    """The model is not there yet."""

    type = "voicechat.loading"
    seconds: float


@dataclass(frozen=True, kw_only=True)
class SessionCreated(Message):
    """The model is there: talk."""

    type = "session.created"
    session: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SessionUpdated(Message):
    """What is in force."""

    type = "session.updated"
    session: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Committed(Message):
    """The user's turn is complete, as the client said."""

    type = "input_audio_buffer.committed"
    item_id: str
    previous_item_id: str | None


@dataclass(frozen=True, kw_only=True)
class Cleared(Message):
    """Audio that waited is gone."""

    type = "input_audio_buffer.cleared"
    dropped_seconds: float


@dataclass(frozen=True, kw_only=True)
class ItemAdded(Message):
    """An item of the conversation begins."""

    type = "conversation.item.added"
    previous_item_id: str | None
    item: Item


@dataclass(frozen=True, kw_only=True)
class ItemDone(Message):
    """An item of the conversation is complete."""

    type = "conversation.item.done"
    previous_item_id: str | None
    item: Item


@dataclass(frozen=True, kw_only=True)
class UserDelta(Message):
    """More of what the user was heard to say."""

    type = "conversation.item.input_audio_transcription.delta"
    item_id: str
    content_index: int = 0
    delta: str
    frame: int


@dataclass(frozen=True, kw_only=True)
class UserCompleted(Message):
    """All that the user was heard to say in a turn."""

    type = "conversation.item.input_audio_transcription.completed"
    item_id: str
    content_index: int = 0
    transcript: str
    usage: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ResponseCreated(Message):
    """A turn begins."""

    type = "response.created"
    response: Item


@dataclass(frozen=True, kw_only=True)
class ResponseDone(Message):
    """A turn ends."""

    type = "response.done"
    response: Item


@dataclass(frozen=True, kw_only=True)
class OfItem(Message):
    """Belongs to an output item of a response."""

    response_id: str
    output_index: int


@dataclass(frozen=True, kw_only=True)
class OutputItemAdded(OfItem):
    """An output item begins."""

    type = "response.output_item.added"
    item: Item


@dataclass(frozen=True, kw_only=True)
class OutputItemDone(OfItem):
    """An output item is complete."""

    type = "response.output_item.done"
    item: Item


@dataclass(frozen=True, kw_only=True)
class OfPart(OfItem):
    """Belongs to the speech of a message."""

    item_id: str
    content_index: int = 0


@dataclass(frozen=True, kw_only=True)
class PartAdded(OfPart):
    """The speech begins."""

    type = "response.content_part.added"
    part: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class PartDone(OfPart):
    """The speech is complete."""

    type = "response.content_part.done"
    part: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class AudioDelta(OfPart):
    """More sound."""

    type = "response.output_audio.delta"
    delta: bytes
    frame: int


@dataclass(frozen=True, kw_only=True)
class AudioDone(OfPart):
    """No more sound in this turn."""

    type = "response.output_audio.done"


@dataclass(frozen=True, kw_only=True)
class TranscriptDelta(OfPart):
    """More of what the assistant says."""

    type = "response.output_audio_transcript.delta"
    delta: str
    frame: int


@dataclass(frozen=True, kw_only=True)
class TranscriptDone(OfPart):
    """All that the assistant said in a turn."""

    type = "response.output_audio_transcript.done"
    transcript: str


@dataclass(frozen=True, kw_only=True)
class FunctionText(Message):
    """More of the function channel."""

    type = "voicechat.function_text.delta"
    response_id: str
    delta: str
    frame: int


@dataclass(frozen=True, kw_only=True)
class ArgumentsDelta(OfItem):
    """The arguments of a call."""

    type = "response.function_call_arguments.delta"
    item_id: str
    call_id: str
    delta: str


@dataclass(frozen=True, kw_only=True)
class ArgumentsDone(OfItem):
    """A call to be made."""

    type = "response.function_call_arguments.done"
    item_id: str
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True)
class FrameReport(Message):
    """How long a frame took, and how much audio waits."""

    type = "voicechat.frame"
    frame: int
    seconds: float
    backlog_seconds: float


@dataclass(frozen=True, kw_only=True)
class BacklogReport(Message):
    """Too much audio waits."""

    type = "voicechat.backlog"
    seconds: float
    limit_seconds: float


@dataclass(frozen=True, kw_only=True)
class Finished(Message):
    """The conversation is over. Ids and codes are null unless the session asked for them."""

    type = "voicechat.finished"
    reason: str
    frames: int
    input_seconds: float
    transcript: str
    text: str
    function_text: str
    text_tokens: list[int] | None = None
    function_tokens: list[int] | None = None
    audio_codes: list[list[int]] | None = None


@dataclass(frozen=True, kw_only=True)
class Error(Message):
    """Something could not be done; docs/online.md lists the codes."""

    type = "error"
    error: dict[str, Any]


def error(
    code: str, message: str, *, param: str | None = None, event_id: str | None = None, server: bool = False
) -> Error:
    """`server` says that the client did nothing wrong."""
    kind = "server_error" if server else "invalid_request_error"
    return Error(error={"type": kind, "code": code, "message": message, "param": param, "event_id": event_id})
