"""uvicorn's HTTP without its endless patience: a connection that asks for nothing would hold its place for ever.

A few hundred of them take all the files that a process may open, and nobody else could connect.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10.0
"""In which the first line and the headers of a request must come, twice that at most."""


class ImpatientHttp(H11Protocol):
    """For uvicorn's `http` option."""

    request_seconds = REQUEST_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin to wait."""
        super().connection_made(transport)
        self._was_idle = True
        self.loop.call_later(self.request_seconds, self._look)

    def _look(self) -> None:
        """Hang up on who has had no request under way for the whole time."""
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return  # it has gone, or has become a WebSocket
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self._was_idle:
            self.transport.close()
        else:
            self._was_idle = idle
            self.loop.call_later(self.request_seconds, self._look)
