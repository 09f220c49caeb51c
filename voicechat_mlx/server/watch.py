"""Sees where an answer ends, from ids and events alone: no clock, so the same talk always ends at the same frames."""

from __future__ import annotations

from collections.abc import Sequence

from voicechat_mlx.events import Event, FunctionDelta, TextDelta, ToolCall


class Watch:
    """One conversation's turns, frame by frame."""

    def __init__(self, *, bos: int, eos: int, quiet_frames: int) -> None:
        """`bos` and `eos` stand on the text channel around an answer; `quiet_frames` end one that never ends."""
        self._bos, self._eos, self._quiet_frames = bos, eos, quiet_frames
        self._said = False
        """Whether the turn holds an answer that may end."""
        self.quiet = 0
        """Frames since the last word."""
        self.muted = False
        """Whether an answer goes on that was cancelled."""

    def cancel(self) -> None:
        """Whatever the model is saying is not to be heard."""
        self._said, self.muted = False, True

    def take(self, ids: Sequence[int], events: Sequence[Event]) -> bool:
        """The text ids and events of more frames → whether the turn ends with them."""
        words = any(isinstance(event, TextDelta | FunctionDelta) for event in events)
        self.quiet = 0 if words else self.quiet + len(ids)
        called = any(isinstance(event, ToolCall) for event in events)
        if self._bos in ids:
            self._said, self.muted = True, False
        if self.muted:
            self.muted = self._eos not in ids and self.quiet < self._quiet_frames
            return called
        self._said |= any(isinstance(event, TextDelta) for event in events)
        ends = called or (self._said and self._eos in ids)
        self._said &= not ends
        return ends


class Answer:
    """The silence that one `response.create` supplies."""

    def __init__(self, *, quiet_frames: int, most_frames: int) -> None:
        self._quiet_frames, self._most_frames = quiet_frames, most_frames
        self._frames = 0

    def ends(self, watch: Watch, frames: int) -> bool:
        """After so many more frames of it: whether it has been enough."""
        self._frames += frames
        return self._frames >= self._most_frames or min(self._frames, watch.quiet) >= self._quiet_frames
