"""What callers may rely on: the names of the package, its events and results, and the tree of its exceptions."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys

import pytest

import voicechat_mlx
from voicechat_mlx import errors


def test_public_names_are_these() -> None:
    assert sorted(voicechat_mlx.__all__) == [
        "Audio",
        "AudioError",
        "Cancelled",
        "CheckpointError",
        "ConfigError",
        "Done",
        "Event",
        "FrameTiming",
        "FunctionDelta",
        "InputError",
        "OutputError",
        "Profile",
        "Session",
        "SessionError",
        "TextDelta",
        "ToolCall",
        "ToolCallFailed",
        "ToolError",
        "ToolLimits",
        "TranscriptDelta",
        "VoiceChat",
        "VoiceChatError",
        "VoiceChatResult",
        "generate",
        "load",
    ]
    for name in voicechat_mlx.__all__:
        assert getattr(voicechat_mlx, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"voicechat_mlx.*nothing"):
        voicechat_mlx.nothing  # noqa: B018  # reading it is the test


def test_the_exception_tree_is_this() -> None:
    found = {
        name: kind.__base__.__name__
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, Exception)
    }
    assert found == {
        "VoiceChatError": "Exception",
        "InputError": "VoiceChatError",
        "ConfigError": "InputError",
        "CheckpointError": "InputError",
        "AudioError": "InputError",
        "OutputError": "InputError",
        "SessionError": "VoiceChatError",
        "ToolError": "VoiceChatError",
    }


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        (voicechat_mlx.Audio, ["frame", "samples"]),
        (voicechat_mlx.TextDelta, ["frame", "text"]),
        (voicechat_mlx.FunctionDelta, ["frame", "text"]),
        (voicechat_mlx.TranscriptDelta, ["frame", "text"]),
        (voicechat_mlx.ToolCall, ["frame", "id", "name", "arguments"]),
        (voicechat_mlx.ToolCallFailed, ["frame", "reason", "text", "id"]),
        (voicechat_mlx.FrameTiming, ["frame", "seconds"]),
        (voicechat_mlx.Cancelled, ["frame"]),
        (voicechat_mlx.Done, ["frame", "reason"]),
    ],
)
def test_events_are_frozen_and_have_these_fields(event: type, fields: list[str]) -> None:
    assert issubclass(event, voicechat_mlx.Event)
    assert [field.name for field in dataclasses.fields(event)] == fields
    with pytest.raises(dataclasses.FrozenInstanceError):
        event(**dict.fromkeys(fields)).frame = 1


def test_a_result_has_what_is_documented() -> None:
    names = {field.name for field in dataclasses.fields(voicechat_mlx.VoiceChatResult)}
    documented = {"user_transcript", "text", "function_text", "audio", "sample_rate"}
    assert documented | {"text_tokens", "function_tokens", "audio_codes"} <= names


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (voicechat_mlx.load, ["source", "dtype", "force"]),
        (
            voicechat_mlx.Session,
            [
                *("model", "system_prompt", "seed", "conventions", "profile", "limit_seconds", "history_seconds"),
                *("lazy", "frame_timing", "tools", "on_tool", "tool_limits"),
            ],
        ),
        (
            voicechat_mlx.generate,
            ["model", "audio", "system_prompt", "extra_decoding_seconds", "seed", "conventions", "progress"],
        ),
    ],
)
def test_entry_points_take_these_arguments(function: object, parameters: list[str]) -> None:
    assert list(inspect.signature(function).parameters) == parameters


def test_importing_the_package_does_not_import_mlx() -> None:
    code = "import sys, voicechat_mlx; voicechat_mlx.Audio; sys.exit('mlx.core' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
