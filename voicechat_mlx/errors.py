"""The exceptions a caller can meet, as one tree.

    VoiceChatError
    ├── InputError          the caller's input is wrong (CLI exit code 2)
    │   ├── ConfigError         config.json: a missing key, a wrong type, a value that is not implemented
    │   ├── CheckpointError     weights, tokenizer or vocabulary files
    │   ├── AudioError          an audio file or array that cannot be used
    │   └── OutputError         a place that cannot be written
    └── SessionError        a session used out of order, for instance a push after finish()

Every message is one line: the thing at fault, what was found, and what to do about it.
"""

from __future__ import annotations


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
