"""Everything that is bounded, with its default, and the counter of who may talk at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from voicechat_mlx.server.protocol import LONGEST_TAIL_SECONDS


@dataclass(frozen=True, kw_only=True)
class Limits:
    """docs/online.md says what happens at each."""

    message_bytes: int = 1 << 20
    """Of one message: 16 s at 24 kHz. Parsing it takes a few milliseconds, in which nobody else is served."""
    backlog_report_seconds: float = 2.0
    backlog_seconds: float = 60.0
    """Appended audio that waits to be heard."""
    idle_seconds: float = 120.0
    """Without audio, and with nothing left to compute."""
    session_seconds: float = 3600.0
    max_sessions: int = 4
    startup_seconds: float = 300.0
    """From connecting to `session.created`: loading a large model takes minutes."""
    send_seconds: float = 20.0
    """In which a client takes nothing of what is sent."""
    outgoing_bytes: int = 1 << 20
    """Unsent; then the session's frames wait."""
    instructions_chars: int = 16_000
    tools_chars: int = 64_000
    quiet_seconds: float = 3.0
    """Without text, and `response.create` has had its answer."""
    answer_seconds: float = 60.0
    """Of silence that one `response.create` may supply."""
    tail_seconds: float = LONGEST_TAIL_SECONDS
    """Of silence that one `voicechat.finish` may ask for."""

    def as_dict(self) -> dict[str, float]:
        """For `session.created` and `/health`."""
        return asdict(self)


class Places:
    """Counts who talks. Not for threads: the event loop's alone."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0

    @contextmanager
    def one(self) -> Iterator[bool]:
        """Whether there was a place; it is free again when the block ends, whatever happened in it."""
        found = self.taken < self.limit
        self.taken += found
        try:
            yield found
        finally:
            self.taken -= found
