"""NVIDIA NemotronLabs VoiceChat in MLX: a WAV goes in; transcript, text, function text and a spoken answer come out.

    import voicechat_mlx as vc
    model = vc.load()
    result = vc.generate(model, "question.wav")

Names are fetched from their modules when they are first used, so that importing the package does not import MLX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from voicechat_mlx.blas import preload_openblas
from voicechat_mlx.environment import set_defaults
from voicechat_mlx.errors import (
    AudioError,
    CheckpointError,
    ConfigError,
    InputError,
    OutputError,
    SessionError,
    ToolError,
    VoiceChatError,
)
from voicechat_mlx.events import (
    Audio,
    Cancelled,
    Done,
    Event,
    FrameTiming,
    FunctionDelta,
    TextDelta,
    ToolCall,
    ToolCallFailed,
    TranscriptDelta,
)

if TYPE_CHECKING:
    from voicechat_mlx.model import VoiceChat, load
    from voicechat_mlx.offline import VoiceChatResult, generate
    from voicechat_mlx.session import Session
    from voicechat_mlx.timing import Profile
    from voicechat_mlx.tools.exchange import ToolLimits

set_defaults()  # both before anything imports mlx.core
preload_openblas()

__version__ = "0.1.0"
__all__ = [
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
_HOMES = {
    "Profile": "timing",
    "Session": "session",
    "ToolLimits": "tools.exchange",
    "VoiceChat": "model",
    "VoiceChatResult": "offline",
    "generate": "offline",
    "load": "model",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
