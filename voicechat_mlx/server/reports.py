"""What the worker tells the network side about a conversation. No MLX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voicechat_mlx.errors import VoiceChatError
from voicechat_mlx.events import Event
from voicechat_mlx.server.protocol import ToolOutput


@dataclass(frozen=True, kw_only=True, eq=False)
class Totals:
    """A conversation that is over."""

    reason: str
    """`finished` or `limit`."""
    frames: int
    input_seconds: float
    text_tokens: NDArray[np.int32] | None
    function_tokens: NDArray[np.int32] | None
    audio_codes: NDArray[np.int32] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """Some frames were answered."""

    events: Sequence[Event]
    frames: int
    """How many."""
    first_frame: int
    muted: bool
    """Whether they belong to an answer that was cancelled."""
    ends: bool
    """Whether the turn ends with them."""
    seconds: float
    """Computing time."""
    backlog_seconds: float
    """Audio that still waits."""
    totals: Totals | None
    """Given with the last frames of the conversation."""


@dataclass(frozen=True, kw_only=True)
class TurnCancelled:
    """`response.cancel` was done."""

    event_id: str | None


@dataclass(frozen=True, kw_only=True)
class ToolTaken:
    """A result will be written into the conversation."""

    request: ToolOutput


@dataclass(frozen=True, kw_only=True)
class ToolRefused:
    """A result that cannot be used."""

    request: ToolOutput
    error: VoiceChatError


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A fault of ours; the conversation is over."""

    message: str


Report = Step | TurnCancelled | ToolTaken | ToolRefused | Failed
