"""The life of one WebSocket: a reader, a writer and a watchman on the event loop. MLX is never touched here.

Everything that is sent goes through the outbox, so it has one order, and one close at its end.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid

from starlette.websockets import WebSocket, WebSocketDisconnect

from voicechat_mlx.server import messages
from voicechat_mlx.server.access import SUBPROTOCOL
from voicechat_mlx.server.conversation import Conversation
from voicechat_mlx.server.ids import Ids
from voicechat_mlx.server.messages import Message
from voicechat_mlx.server.outbox import Close, Outbox
from voicechat_mlx.server.protocol import ProtocolError, parse
from voicechat_mlx.server.reports import Report
from voicechat_mlx.server.service import Service, in_loop
from voicechat_mlx.server.websocket import abort

logger = logging.getLogger(__name__)

CLOSE_CODES = {
    "server_shutting_down": 1001,
    "idle_timeout": 1008,
    "session_expired": 1008,
    "internal_error": 1011,
    "startup_failed": 1011,
    "server_busy": 1013,
    "startup_timeout": 1013,
}
"""Errors after which the server closes, and how."""
GONE = Close(code=1005, reason="the client has left")
"""Ends the writer's work without a close of ours."""
THROTTLE_SECONDS = 0.05
"""A client whose audio was shed is read more slowly."""
WATCH_SECONDS = 0.5


class Connection:
    """One client."""

    def __init__(self, socket: WebSocket, service: Service) -> None:
        self._socket, self._service, self._limits = socket, service, service.limits
        self._loop = asyncio.get_running_loop()
        self._ids = Ids()
        self._outbox = Outbox(service.limits.outgoing_bytes)
        self._conversation = Conversation(
            id=f"sess_{uuid.uuid4().hex}", service=service, ids=self._ids, say=self._say, listener=self._listen
        )
        self._connected = self._touched = time.monotonic()
        self._created: float | None = None
        """When `session.created` was sent."""

    @property
    def backlog_seconds(self) -> float:
        """Audio that waits to be heard."""
        return self._conversation.backlog_seconds

    async def run(self) -> None:
        """Serve until one of the two leaves. The place is free when this returns, whatever happened."""
        offered = self._socket.scope["subprotocols"]
        await self._socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        with self._service.places.one() as found:
            self._service.connections.add(self)
            try:
                if found:
                    self._service.metrics.sessions += 1
                    await self._serve()
                else:
                    most = self._limits.max_sessions
                    self.hang_up("server_busy", f"{most} of {most} places are taken; try again later")
                    await self._write()
            except (WebSocketDisconnect, OSError):
                pass
            finally:
                self._service.connections.discard(self)
                self._conversation.close()

    def hang_up(self, code: str, message: str) -> None:
        """Say why, in place of all that waits, and close."""
        error = messages.error(code, message, server=True)
        self._count(error)
        text = error.to_json(self._ids.next("event"))
        self._outbox.close(Close(code=CLOSE_CODES[code], reason=code), instead=text)

    def on_loaded(self) -> None:
        """The model is there, or never will be. Once is enough; more does nothing."""
        if self._created is not None or self._outbox.is_closed:
            return
        if self._service.worker.failure is not None:
            self.hang_up("startup_failed", "the model could not be loaded; the server's log says why")
            return
        self._created = self._touched = time.monotonic()
        first = self._conversation.greet()
        self._outbox.release([message.to_json(self._ids.next("event")) for message in first])

    async def _serve(self) -> None:
        if self._service.is_stopping:
            self.hang_up("server_shutting_down", "the server stops; connect again later")
        elif self._service.worker.state == "loading":
            loading = messages.Loading(seconds=round(self._service.uptime, 1))
            await self._socket.send_text(loading.to_json(self._ids.next("event")))
        if self._service.worker.state != "loading":
            self.on_loaded()
        helpers = [asyncio.create_task(self._read()), asyncio.create_task(self._watch())]
        try:
            await self._write()
        finally:
            for task in helpers:
                task.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    async def _write(self) -> None:
        """Send what waits until the close."""
        while True:
            item = await self._outbox.get()
            if item is GONE:
                return
            try:
                async with asyncio.timeout(self._limits.send_seconds):
                    if isinstance(item, Close):
                        self._service.metrics.closes[item.code] += 1
                        await self._socket.close(item.code, item.reason)
                        return
                    await self._socket.send_text(item)
            except TimeoutError:
                self._service.metrics.errors["slow_reader"] += 1
                abort(self._socket)
                return
            self._conversation.pause(self._outbox.is_full)

    async def _read(self) -> None:
        """Take what comes, as long as the client reads, too."""
        while True:
            if self._created is None and self._outbox.is_full:  # who waited for room would not see the client leave
                self.hang_up("server_busy", "too much was sent while the model is being loaded; try again later")
            await self._outbox.room()
            received = await self._socket.receive()
            if received["type"] == "websocket.disconnect":
                self._outbox.close(GONE)
                return
            try:
                if not self._outbox.is_closed:
                    self._take(received.get("text"))
            except ProtocolError as error:
                self._say(messages.error(error.code, str(error), param=error.param, event_id=error.event_id))
                await asyncio.sleep(THROTTLE_SECONDS if error.code == "backlog_full" else 0)
            except Exception:
                logger.exception("a request broke off")
                self.hang_up("internal_error", "a fault of the server, see its log; connect again")
            await asyncio.sleep(0)  # one message each: nobody floods the others out

    def _take(self, text: str | None) -> None:
        if text is None:
            raise ProtocolError("binary_not_supported", "send text: audio is base64 in input_audio_buffer.append")
        request = parse(text)
        try:
            if self._conversation.obey(request):
                self._touched = time.monotonic()
        except ProtocolError as error:
            error.event_id = request.event_id
            raise

    async def _watch(self) -> None:
        """Hang up on who comes too late, does nothing, or stays too long."""
        limits, shortest = self._limits, min(self._limits.idle_seconds, self._limits.startup_seconds)
        while True:
            await asyncio.sleep(min(WATCH_SECONDS, shortest / 4, limits.session_seconds / 4))
            now = time.monotonic()
            if self._created is None:
                if now - self._connected > limits.startup_seconds:
                    self.hang_up("startup_timeout", "the model is still being loaded; try again later")
            elif now - self._created > limits.session_seconds + limits.idle_seconds:
                self.hang_up("session_expired", f"a session lasts {limits.session_seconds:g} s; connect again")
            elif now - self._touched > limits.idle_seconds and not self._conversation.is_busy:
                self.hang_up("idle_timeout", f"no audio for {limits.idle_seconds:g} s; connect when there is some")

    def _on_report(self, report: Report) -> None:
        self._touched = time.monotonic()
        try:
            self._conversation.hear(report)
        except Exception as error:  # such as sound that is no number: nobody above would tell the client
            logger.exception("an answer could not be told")
            self._conversation.fault = f"{type(error).__name__}: {error}"
        if self._conversation.fault is not None:
            self.hang_up("internal_error", "a fault of the server, see its log; connect again")
        elif self._conversation.is_over:
            self._outbox.close(Close(code=1000, reason="finished"))

    def _listen(self, report: Report) -> None:
        """Called by the worker's thread."""
        in_loop(self._loop, lambda: self._on_report(report))

    def _say(self, message: Message) -> None:
        self._count(message)
        self._outbox.put(message.to_json(self._ids.next("event")))
        if self._outbox.is_full:
            self._conversation.pause(True)

    def _count(self, message: Message) -> None:
        if isinstance(message, messages.Error):
            self._service.metrics.errors[message.error["code"]] += 1
