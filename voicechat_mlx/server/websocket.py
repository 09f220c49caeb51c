"""uvicorn's WebSocket with two things that it lacks.

Breaking off a connection whose peer reads nothing: a polite close would wait for it for ever. And staying until a peer
that broke the rules has heard so: closing while it still sends resets the connection, and the close code is lost.
"""

from __future__ import annotations

from starlette.websockets import WebSocket
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

EXTENSION = "voicechat.abort"
LINGER_SECONDS = 1.0


class PatientWebSocket(WebSocketsSansIOProtocol):
    """For uvicorn's `ws` option."""

    def handle_connect(self, event: Request) -> None:
        """Offer the transport's abort to the application, which begins to run after this returns."""
        super().handle_connect(event)
        if hasattr(self, "scope"):
            self.scope["extensions"][EXTENSION] = {"abort": self.transport.abort}

    def handle_parser_exception(self) -> None:
        """Send the close that says what was wrong, and read on, to no end, until the peer has closed, too."""
        if self.close_sent:
            return
        close = self.conn.close_sent
        assert close is not None
        self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": close.code, "reason": close.reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)


def abort(socket: WebSocket) -> None:
    """Drop the connection and all that is unsent, at once."""
    offered = socket.scope.get("extensions", {}).get(EXTENSION)
    if offered is not None:
        offered["abort"]()
