"""What all connections of one server share."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from voicechat_mlx.model import VoiceChat
from voicechat_mlx.server.access import Access
from voicechat_mlx.server.limits import Limits, Places
from voicechat_mlx.server.metrics import Metrics
from voicechat_mlx.server.worker import Worker

if TYPE_CHECKING:
    from voicechat_mlx.server.connection import Connection

GOODBYE_SECONDS = 3.0
"""In which connections are told that the server stops."""


@dataclass(kw_only=True)
class Service:
    """One model, its worker, and who is connected."""

    load: Callable[[], VoiceChat]
    model_name: str
    """What clients see; never a path."""
    limits: Limits = field(default_factory=Limits)
    access: Access = field(default_factory=Access)

    def __post_init__(self) -> None:
        self.worker = Worker(self.load, self.limits)
        self.metrics = Metrics()
        self.places = Places(self.limits.max_sessions)
        self.connections: set[Connection] = set()
        self.is_stopping = False
        self._started = time.monotonic()

    @property
    def default_instructions(self) -> str | None:
        """The checkpoint's own system prompt, once it is loaded."""
        return self.worker.model.config.default_system_prompt if self.worker.model else None

    @property
    def uptime(self) -> float:
        """Seconds."""
        return time.monotonic() - self._started

    def health(self) -> dict[str, Any]:
        """For `/health`."""
        return {
            "status": {"ready": "ok"}.get(self.worker.state, self.worker.state),
            "model": self.model_name,
            "sessions": self.places.taken,
            "max_sessions": self.places.limit,
            "token_required": self.access.token is not None,
            "uptime_seconds": round(self.uptime, 1),
            "limits": self.limits.as_dict(),
        }

    def metrics_text(self) -> str:
        """For `/metrics`."""
        waiting = [connection.backlog_seconds for connection in self.connections]
        return self.metrics.render(
            {
                "model_loaded": ("1 when the model is ready.", float(self.worker.state == "ready")),
                "sessions": ("Connections that have a place now.", self.places.taken),
                "sessions_limit": ("Places.", self.places.limit),
                "backlog_seconds": ("Audio that waits, of all sessions.", sum(waiting)),
                "backlog_seconds_max": ("Audio that waits, of the session with the most.", max(waiting, default=0.0)),
                "uptime_seconds": ("Since the start.", self.uptime),
            }
        )

    def tell_loaded(self) -> None:
        """The model is loaded, or has failed to: everybody who waits may go on."""
        for connection in list(self.connections):
            connection.on_loaded()

    async def say_goodbye(self) -> None:
        """Tell everybody that the server stops, and wait until they have heard it."""
        self.is_stopping = True
        for connection in list(self.connections):
            connection.hang_up("server_shutting_down", "the server stops; connect again later")
        deadline = time.monotonic() + GOODBYE_SECONDS
        while self.connections and time.monotonic() < deadline:
            await asyncio.sleep(0.02)


def in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Have the event loop's thread do it; nothing when the loop has been closed, since then the server stops."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call)
