"""What a session tells its caller, in the order in which it happens. Joined deltas equal the whole text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
    """More of the function channel."""


@dataclass(frozen=True, kw_only=True)
class TranscriptDelta(Delta):
    """More of what the user was heard to say."""


@dataclass(frozen=True, kw_only=True)
class Done(Event):
    """The end; `frame` is the number of frames in all."""
