"""`session.update`: what changes, what is let pass, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from voicechat_mlx.server.limits import Limits
from voicechat_mlx.server.protocol import ProtocolError
from voicechat_mlx.server.settings import Settings

TOOL = {"type": "function", "name": "get_time", "description": "Tells the time", "parameters": {"type": "object"}}


def nested(lists: int) -> Any:
    """So many lists in one another."""
    return [nested(lists - 1)] if lists else 0


def updated(session: dict[str, Any], **limits: Any) -> Settings:
    return Settings().updated(session, Limits(**limits))


def described(settings: Settings, default: str | None = "Be kind.") -> dict[str, Any]:
    return settings.described(id="sess_1", model="m", default_instructions=default, limits=Limits())


def test_nothing_given_is_openais_default_rate_and_the_checkpoints_prompt() -> None:
    shown = described(Settings())
    assert shown["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24000}
    assert shown["audio"]["output"]["format"] == {"type": "audio/pcm", "rate": 24000}
    assert shown["instructions"] == "Be kind."
    assert described(Settings(), None)["instructions"] == ""
    assert described(updated({"instructions": ""}))["instructions"] == ""


def test_each_field_that_means_something_changes_what_is_in_force() -> None:
    found = updated(
        {
            "type": "realtime",
            "instructions": "Sing.",
            "tools": [TOOL],
            "audio": {"input": {"format": {"type": "audio/pcm", "rate": 16000}}, "output": {"format": {"rate": 22050}}},
            "voicechat": {"seed": 2**64 - 1, "include": ["ids", "frames"]},
        }
    )
    assert found == Settings(
        instructions="Sing.",
        tools=(TOOL,),
        input_rate=16000,
        output_rate=22050,
        seed=2**64 - 1,
        include=frozenset(("ids", "frames")),
    )


def test_what_is_not_named_stays() -> None:
    first = updated({"instructions": "Sing.", "audio": {"input": {"format": {"rate": 16000}}}})
    second = first.updated({"audio": {"output": {"format": {"rate": 16000}}}}, Limits())
    assert (second.instructions, second.input_rate, second.output_rate) == ("Sing.", 16000, 16000)


def test_what_the_server_says_may_be_sent_back_to_it() -> None:
    settings = updated({"instructions": "Sing.", "tools": [TOOL], "voicechat": {"seed": 3}})
    assert Settings().updated(described(settings), Limits()) == settings


def test_openais_fields_without_meaning_here_change_nothing() -> None:
    session = {
        "model": "gpt-realtime",
        "output_modalities": ["audio"],
        "tool_choice": "auto",
        "audio": {"input": {"turn_detection": {"type": "server_vad"}, "transcription": {}}, "output": {"voice": "x"}},
    }
    assert updated(session) == Settings()


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        ({"type": "transcription"}, "invalid_value", "session.type"),
        ({"temper": 1}, "unknown_parameter", "session.temper"),
        ({"instructions": 3}, "invalid_value", "session.instructions"),
        ({"instructions": "\ud800"}, "invalid_value", "session.instructions"),
        ({"instructions": "x" * 16_001}, "invalid_value", "session.instructions"),
        ({"tools": {}}, "invalid_value", "session.tools"),
        ({"tools": [{"name": ""}]}, "invalid_value", "session.tools"),
        ({"tools": [TOOL, TOOL]}, "invalid_value", "session.tools"),
        ({"tools": [{**TOOL, "parameters": {"maximum": float("inf")}}]}, "invalid_value", "session.tools"),
        ({"tools": [{**TOOL, "parameters": {"deep": nested(100)}}]}, "invalid_value", "session.tools"),
        ({"tools": [{**TOOL, "description": "x" * 64_000}]}, "invalid_value", "session.tools"),
        ({"audio": []}, "invalid_value", "session.audio"),
        ({"audio": {"both": {}}}, "unknown_parameter", "session.audio.both"),
        ({"audio": {"input": {"loudness": 1}}}, "unknown_parameter", "session.audio.input.loudness"),
        ({"audio": {"input": {"format": "pcm16"}}}, "invalid_value", "session.audio.input.format"),
        (
            {"audio": {"input": {"format": {"type": "audio/pcmu"}}}},
            "unsupported_audio_format",
            "session.audio.input.format.type",
        ),
        (
            {"audio": {"output": {"format": {"rate": 8000}}}},
            "unsupported_audio_format",
            "session.audio.output.format.rate",
        ),
        (
            {"audio": {"output": {"format": {"rate": "fast"}}}},
            "unsupported_audio_format",
            "session.audio.output.format.rate",
        ),
        (
            {"audio": {"output": {"format": {"rate": True}}}},
            "unsupported_audio_format",
            "session.audio.output.format.rate",
        ),
        ({"voicechat": {"seed": -1}}, "invalid_value", "session.voicechat.seed"),
        ({"voicechat": {"seed": 1.5}}, "invalid_value", "session.voicechat.seed"),
        ({"voicechat": {"include": ["all"]}}, "invalid_value", "session.voicechat.include"),
        ({"voicechat": {"include": [["ids"]]}}, "invalid_value", "session.voicechat.include"),
        ({"voicechat": {"speed": 2}}, "unknown_parameter", "session.voicechat.speed"),
    ],
)
def test_what_cannot_be_set_is_named(session: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        updated(session)
    assert (caught.value.code, caught.value.param) == (code, param)
