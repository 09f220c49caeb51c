"""What a client may say: JSON text → typed requests, or a `ProtocolError` that names what to mend.

No MLX and no network. Field by field in docs/online.md; the names are those of OpenAI's Realtime API.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from voicechat_mlx.errors import VoiceChatError

LONGEST_TAIL_SECONDS = 60.0
"""Of silence that `voicechat.finish` may ask for."""
LONGEST_SHOWN = 80
"""Characters of a client's own words that an error repeats."""
PATH = "/v1/realtime"
NO_MEANING_HERE = (
    "conversation.item.retrieve",
    "conversation.item.delete",
    "conversation.item.truncate",
    "output_audio_buffer.clear",
)
"""OpenAI's events that would edit the past."""
OF_THE_SESSION = ("instructions", "input", "tools", "conversation")
"""Parameters of `response.create` that a running conversation cannot follow."""


class ProtocolError(VoiceChatError):
    """A request that cannot be followed. Nothing of it was done."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.event_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """Something that a client sent."""

    event_id: str | None = None
    """The client's own name for it."""


@dataclass(frozen=True, kw_only=True)
class SessionUpdate(Request):
    """`session.update`; `settings` reads the fields."""

    session: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Append(Request):
    """`input_audio_buffer.append`."""

    pcm: bytes
    """Little-endian PCM16, whole samples."""


@dataclass(frozen=True, kw_only=True)
class Commit(Request):
    """`input_audio_buffer.commit`."""


@dataclass(frozen=True, kw_only=True)
class Clear(Request):
    """`input_audio_buffer.clear`."""


@dataclass(frozen=True, kw_only=True)
class CreateResponse(Request):
    """`response.create`."""


@dataclass(frozen=True, kw_only=True)
class CancelResponse(Request):
    """`response.cancel`."""

    response_id: str | None


@dataclass(frozen=True, kw_only=True)
class ToolOutput(Request):
    """`conversation.item.create` with a `function_call_output`."""

    item_id: str | None
    call_id: str
    output: str

    @property
    def result(self) -> Any:
        """`output` as JSON if it is JSON, else as the text that it is."""
        try:
            return _load(self.output)
        except (ValueError, RecursionError):
            return self.output


@dataclass(frozen=True, kw_only=True)
class Finish(Request):
    """`voicechat.finish`."""

    extra_seconds: float


def parse(text: str) -> Request:
    """A text message → what it asks for. Raises ProtocolError, with the client's `event_id` where it gave one."""
    try:
        event = _load(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:LONGEST_SHOWN]
        raise ProtocolError("invalid_json", f"the message is not JSON: {reason}") from None
    if not isinstance(event, dict):
        raise ProtocolError("invalid_event", f"a message must be a JSON object, this is {kind(event)}")
    event_id = event.get("event_id")
    if event_id is not None and not isinstance(event_id, str):
        raise ProtocolError("invalid_event", f"event_id must be a string, this is {kind(event_id)}", "event_id")
    try:
        return _read(event, event_id)
    except ProtocolError as error:
        error.event_id = event_id
        raise


def kind(value: object) -> str:
    """What JSON calls a value's type."""
    names = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "an array"}
    return "null" if value is None else names.get(type(value), "an object")


def shown(text: str) -> str:
    """A client's word in quotes, cut where it is long."""
    return repr(text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…")


def require(value: Any, wanted: type, param: str) -> Any:
    """The value, if it is of that type. Raises ProtocolError naming `param`."""
    if not isinstance(value, wanted) or (wanted is not bool and isinstance(value, bool)):
        example = {str: "a string", dict: "an object", list: "an array", int: "a whole number"}[wanted]
        raise ProtocolError("invalid_value", f"{param} must be {example}, this is {kind(value)}", param)
    return value


def text_of(value: Any, param: str) -> str:
    """The value, if it is a string that can be written down. Raises ProtocolError."""
    text: str = require(value, str, param)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ProtocolError("invalid_value", f"{param} holds half a surrogate pair", param) from None
    return text


def _load(text: str) -> Any:
    return json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _read(event: Mapping[str, Any], event_id: str | None) -> Request:
    if "type" not in event or not isinstance(event["type"], str):
        raise ProtocolError("invalid_event", "every message needs a type, a string", "type")
    name = event["type"]
    if name in NO_MEANING_HERE:
        raise ProtocolError("unsupported_event", f"{name}: what the model has heard and said cannot be edited", "type")
    if name not in _READERS:
        raise ProtocolError("unknown_event", f"there is no event {shown(name)}", "type")
    return _READERS[name](event, event_id)


def _field(event: Mapping[str, Any], name: str) -> Any:
    if name not in event:
        raise ProtocolError("missing_parameter", f"{event['type']} needs {name}", name)
    return event[name]


def _session_update(event: Mapping[str, Any], event_id: str | None) -> Request:
    return SessionUpdate(event_id=event_id, session=require(_field(event, "session"), dict, "session"))


def _append(event: Mapping[str, Any], event_id: str | None) -> Request:
    audio = require(_field(event, "audio"), str, "audio")
    try:
        pcm = base64.b64decode(audio, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ProtocolError("invalid_audio", f"audio is not base64: {error}", "audio") from None
    if len(pcm) % 2:
        raise ProtocolError("invalid_audio", f"audio has {len(pcm)} bytes; PCM16 has two a sample", "audio")
    return Append(event_id=event_id, pcm=pcm)


def _create_response(event: Mapping[str, Any], event_id: str | None) -> Request:
    response = event.get("response")
    for name in require(response, dict, "response") if response is not None else ():
        if name in OF_THE_SESSION:
            param = f"response.{name}"
            raise ProtocolError("unsupported_parameter", f"{param} cannot be given to one answer", param)
    return CreateResponse(event_id=event_id)


def _cancel_response(event: Mapping[str, Any], event_id: str | None) -> Request:
    response_id = event.get("response_id")
    if response_id is not None:
        require(response_id, str, "response_id")
    return CancelResponse(event_id=event_id, response_id=response_id)


def _create_item(event: Mapping[str, Any], event_id: str | None) -> Request:
    item = require(_field(event, "item"), dict, "item")
    if item.get("type") != "function_call_output":
        found = shown(str(item.get("type")))
        message = f"items of type {found} cannot be added, only function_call_output"
        raise ProtocolError("unsupported_item", message, "item.type")
    for name in ("call_id", "output"):
        if name not in item:
            raise ProtocolError("missing_parameter", f"a function_call_output needs {name}", f"item.{name}")
    item_id = item.get("id")
    return ToolOutput(
        event_id=event_id,
        item_id=None if item_id is None else text_of(item_id, "item.id"),
        call_id=text_of(item["call_id"], "item.call_id"),
        output=text_of(item["output"], "item.output"),
    )


def _finish(event: Mapping[str, Any], event_id: str | None) -> Request:
    seconds = event.get("extra_seconds", 0.0)
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 0 <= seconds <= LONGEST_TAIL_SECONDS:  # a whole number may be larger than any float
        message = f"extra_seconds must be a number from 0 to {LONGEST_TAIL_SECONDS:.0f}"
        raise ProtocolError("invalid_value", message, "extra_seconds")
    return Finish(event_id=event_id, extra_seconds=float(seconds))


_READERS: dict[str, Callable[[Mapping[str, Any], str | None], Request]] = {
    "session.update": _session_update,
    "input_audio_buffer.append": _append,
    "input_audio_buffer.commit": lambda _, event_id: Commit(event_id=event_id),
    "input_audio_buffer.clear": lambda _, event_id: Clear(event_id=event_id),
    "response.create": _create_response,
    "response.cancel": _cancel_response,
    "conversation.item.create": _create_item,
    "voicechat.finish": _finish,
}


def address_of(url: str) -> str:
    """A server's URL, as `voicechat serve` prints it → where its conversations are."""
    return re.sub("^http", "ws", url.rstrip("/")) + PATH
