"""What a client can set about its session, and how that reads on the wire.

Fields of OpenAI's that mean nothing here are accepted, so that its clients work unchanged; unknown ones are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from voicechat_mlx.errors import InputError
from voicechat_mlx.server.limits import Limits
from voicechat_mlx.server.protocol import ProtocolError, kind, require, shown, text_of
from voicechat_mlx.server.resampling import MODEL_INPUT_RATE, MODEL_OUTPUT_RATE, RATES
from voicechat_mlx.tools.protocol import check_tools

PROTOCOL = 1
"""Of the extensions; grows when one changes its meaning."""
DEFAULT_RATE = 24000
"""OpenAI's."""
EXTRAS = ("frames", "ids", "codes")
"""What `voicechat.include` can ask for."""
HIGHEST_SEED = 2**64 - 1
DEEPEST_TOOLS = 100
"""Lists and objects in one another. JSON is written by calls within calls, of which Python has about a thousand."""
WITHOUT_MEANING = frozenset(
    (
        *("id", "object", "model", "expires_at", "output_modalities", "tool_choice", "max_output_tokens"),
        *("truncation", "tracing", "prompt", "include", "reasoning", "parallel_tool_calls"),
    )
)
WITHOUT_MEANING_IN_AUDIO = {
    "input": frozenset(("turn_detection", "transcription", "noise_reduction")),
    "output": frozenset(("voice", "speed")),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A session's settings; never changed, only replaced."""

    instructions: str | None = None
    """None takes the checkpoint's own."""
    input_rate: int = DEFAULT_RATE
    output_rate: int = DEFAULT_RATE
    tools: tuple[Mapping[str, Any], ...] = ()
    seed: int = 0
    include: frozenset[str] = frozenset()

    def updated(self, session: Mapping[str, Any], limits: Limits) -> Settings:
        """With the fields of a `session.update`. Raises ProtocolError."""
        if session.get("type", "realtime") != "realtime":
            raise ProtocolError("invalid_value", 'session.type must be "realtime"', "session.type")
        changes: dict[str, Any] = {}
        for name, value in session.items():
            param = f"session.{name}"
            if name == "instructions":
                changes[name] = _instructions(value, limits)
            elif name == "tools":
                changes[name] = _tools(value, limits)
            elif name == "audio":
                changes |= _audio(require(value, dict, param))
            elif name == "voicechat":
                changes |= _extension(require(value, dict, param))
            elif name not in WITHOUT_MEANING | {"type"}:
                raise _unknown(param)
        return replace(self, **changes)

    def described(self, *, id: str, model: str, default_instructions: str | None, limits: Limits) -> dict[str, Any]:
        """The session object of `session.created` and `session.updated`."""
        instructions = default_instructions if self.instructions is None else self.instructions
        silent: dict[str, Any] = {"turn_detection": None, "transcription": None, "noise_reduction": None}
        return {
            "type": "realtime",
            "object": "realtime.session",
            "id": id,
            "model": model,
            "output_modalities": ["audio"],
            "instructions": instructions or "",
            "audio": {
                "input": {"format": audio_format(self.input_rate), **silent},
                "output": {"format": audio_format(self.output_rate), "voice": "Aria"},
            },
            "tools": list(self.tools),
            "tool_choice": "auto",
            "voicechat": {
                "protocol": PROTOCOL,
                "seed": self.seed,
                "include": sorted(self.include),
                "frame_ms": 80,
                "native_rates": {"input": MODEL_INPUT_RATE, "output": MODEL_OUTPUT_RATE},
                "limits": limits.as_dict(),
            },
        }


def audio_format(rate: int) -> dict[str, Any]:
    """As it stands on the wire."""
    return {"type": "audio/pcm", "rate": rate}


def _unknown(param: str) -> ProtocolError:
    return ProtocolError("unknown_parameter", f"there is no field {shown(param)}; leave it out", param[:200])


def _instructions(value: Any, limits: Limits) -> str:
    text = text_of(value, "session.instructions")
    if len(text) > limits.instructions_chars:
        message = f"instructions have {len(text)} characters; {limits.instructions_chars} are allowed"
        raise ProtocolError("invalid_value", message, "session.instructions")
    return text


def _depth(value: Any) -> int:
    """How deep lists and objects are nested, without nesting calls."""
    depth, level = 0, [value]
    while level := [part for part in level if isinstance(part, list | dict)]:
        depth += 1
        level = [part for whole in level for part in (whole.values() if isinstance(whole, dict) else whole)]
    return depth


def _tools(value: Any, limits: Limits) -> tuple[Mapping[str, Any], ...]:
    tools = require(value, list, "session.tools")
    if _depth(tools) > DEEPEST_TOOLS:
        raise ProtocolError("invalid_value", f"tools are nested deeper than {DEEPEST_TOOLS}", "session.tools")
    try:
        size = len(json.dumps(tools, ensure_ascii=False, allow_nan=False))
    except ValueError:
        raise ProtocolError("invalid_value", "tools hold a number too large to be written", "session.tools") from None
    if size > limits.tools_chars:
        message = f"tools have {size} characters of JSON; {limits.tools_chars} are allowed"
        raise ProtocolError("invalid_value", message, "session.tools")
    try:
        check_tools(tools)
    except InputError as error:
        raise ProtocolError("invalid_value", str(error), "session.tools") from None
    return tuple(tools)


def _audio(audio: Mapping[str, Any]) -> dict[str, int]:
    changes = {}
    for way, fields in audio.items():
        param = f"session.audio.{way}"
        if way not in WITHOUT_MEANING_IN_AUDIO:
            raise _unknown(param)
        for name, value in require(fields, dict, param).items():
            if name == "format":
                changes[f"{way}_rate"] = _rate(value, f"{param}.format")
            elif name not in WITHOUT_MEANING_IN_AUDIO[way]:
                raise _unknown(f"{param}.{name}")
    return changes


def _rate(value: Any, param: str) -> int:
    format = require(value, dict, param)
    type, rate = format.get("type", "audio/pcm"), format.get("rate", DEFAULT_RATE)
    if type != "audio/pcm":
        raise ProtocolError("unsupported_audio_format", "only audio/pcm is spoken here", f"{param}.type")
    if isinstance(rate, bool) or not isinstance(rate, int) or rate not in RATES:
        found = rate if isinstance(rate, int | float) and abs(rate) < 1e9 else kind(rate)
        message = f"{param}.rate is {found}; give one of {', '.join(map(str, RATES))}"
        raise ProtocolError("unsupported_audio_format", message, f"{param}.rate")
    return rate


def _extension(fields: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name, value in fields.items():
        param = f"session.voicechat.{name}"
        if name == "seed":
            if not 0 <= require(value, int, param) <= HIGHEST_SEED:
                raise ProtocolError("invalid_value", f"{param} must be from 0 to 2^64 - 1", param)
            changes["seed"] = value
        elif name == "include":
            for extra in require(value, list, param):
                if extra not in EXTRAS:
                    raise ProtocolError("invalid_value", f"{param} may hold {', '.join(EXTRAS)}", param)
            changes["include"] = frozenset(value)
        elif name not in ("protocol", "frame_ms", "native_rates", "limits"):
            raise _unknown(param)
    return changes
