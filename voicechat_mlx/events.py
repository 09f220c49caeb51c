"""What a session tells its caller, in the order in which it happens. Joined deltas equal the whole text.

There is no event that takes a text back: RNNT pieces and token bytes are only ever appended, and what could still look
different (half a character, spaces that may turn out to be the last) is held until it is certain.

Within a frame: transcript, text, function, tools, timing. Sound comes a frame later, see `Audio`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from voicechat_mlx.errors import CallFault


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that belongs to one 80 ms frame, counted from the first sample pushed."""

    frame: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Audio(Event):
    """Speech at the output rate, whole frames, beginning with `frame`.

    The last 6 samples of a frame take part of their value from the next one (the inverse STFT overlaps), so a frame is
    handed over when its successor is done.
    """

    samples: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Delta(Event):
    """More of a text; never empty."""

    text: str


@dataclass(frozen=True, kw_only=True)
class TextDelta(Delta):
    """More of the assistant's text."""


@dataclass(frozen=True, kw_only=True)
class FunctionDelta(Delta):
    """More of the function channel, tool results that were written into it included."""


@dataclass(frozen=True, kw_only=True)
class TranscriptDelta(Delta):
    """More of what the user was heard to say."""


@dataclass(frozen=True, kw_only=True)
class ToolCall(Event):
    """The model calls a tool; `frame` is the one in which the call ended."""

    id: str
    """Names this call in `Session.add_tool_result`: `call_0`, `call_1`, … in the order of the calls of a session."""
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ToolCallFailed(Event):
    """A call came to nothing. The model is told where it waits for an answer, and the conversation goes on."""

    reason: CallFault
    text: str
    """One line: what was found."""
    id: str | None = None
    """The call, where it came far enough to have an id."""


@dataclass(frozen=True, kw_only=True)
class FrameTiming(Event):
    """How long a frame was worked on. Only sent when the session was opened with `frame_timing=True`.

    This is computing time: waiting for samples, and for other sessions, is not part of it. Frames that one push
    completes share its time evenly.
    """

    seconds: dict[str, float]
    """By stage."""

    @property
    def total_seconds(self) -> float:
        """All stages together; below 0.08 the session keeps up with the speaker."""
        return sum(self.seconds.values())


@dataclass(frozen=True, kw_only=True)
class Cancelled(Event):
    """The end, because the caller cancelled; `frame` is the number of frames answered. Nothing follows."""


@dataclass(frozen=True, kw_only=True)
class Done(Event):
    """The end; `frame` is the number of frames in all. Nothing follows."""

    reason: Literal["finished", "limit"] = "finished"
    """`finished`: the caller said so. `limit`: the session is as long as its `limit_seconds` allow."""
