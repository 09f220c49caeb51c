"""The exceptions a caller can meet, as one tree.

    VoiceChatError
    ├── InputError          the caller's input is wrong (CLI exit code 2)
    │   ├── ConfigError         config.json: a missing key, a wrong type, a value that is not implemented
    │   ├── CheckpointError     weights, tokenizer or vocabulary files
    │   ├── AudioError          an audio file or array that cannot be used
    │   └── OutputError         a place that cannot be written
    ├── SessionError        a session used out of order, for instance a push after finish()
    └── ToolError           a tool's result that cannot be taken; the session goes on

Every message is one line: the thing at fault, what was found, and what to do about it.
"""

from __future__ import annotations

from typing import Literal

CallFault = Literal[
    "malformed",
    "too_long",
    "too_slow",
    "too_many",
    "unknown_tool",
    "unfinished",
    "callback_failed",
    "not_json",
    "too_large",
    "no_result",
]
"""Why a tool call of the model came to nothing (`ToolCallFailed.reason`)."""
ResultFault = Literal["unknown_id", "duplicate_id", "late", "not_json", "too_large"]
"""Why a tool's result was not taken (`ToolError.reason`)."""


class VoiceChatError(Exception):
    """Base of everything this package raises on purpose."""


class InputError(VoiceChatError):
    """The caller's input is wrong; nothing was computed and nothing was written."""


class ConfigError(InputError):
    """config.json is missing a key, holds a wrong type, or asks for something that is not implemented."""


class CheckpointError(InputError):
    """The checkpoint's files do not fit together or do not fit the configuration."""


class AudioError(InputError):
    """An audio file or array is unreadable, empty or not finite."""


class OutputError(InputError):
    """An output path cannot be written."""


class SessionError(VoiceChatError):
    """A session was used out of order."""


class ToolError(VoiceChatError):
    """A tool's result was not taken. The session goes on as if it had not been given."""

    def __init__(self, message: str, reason: ResultFault) -> None:
        super().__init__(message)
        self.reason: ResultFault = reason
        """What a program can act on; the message is for people."""
