"""A server from start to stop: in the foreground for `voicechat serve`, in the background for whoever measures."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from voicechat_mlx.errors import InputError
from voicechat_mlx.server.app import make_app
from voicechat_mlx.server.patience import ImpatientHttp
from voicechat_mlx.server.service import Service
from voicechat_mlx.server.websocket import PatientWebSocket

BACKLOG = 128
"""Connections that the system holds until they are accepted."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOP_SECONDS = 5


class Server(uvicorn.Server):
    """uvicorn's, which says goodbye to conversations before it closes anything, and leaves in peace after a signal."""

    def __init__(self, service: Service) -> None:
        self.service = service
        super().__init__(
            uvicorn.Config(
                make_app(service),
                http=ImpatientHttp,
                ws=PatientWebSocket,
                ws_max_size=service.limits.message_bytes,
                ws_ping_interval=None,  # a pong would wait behind audio that is not read yet; silence is noticed anyway
                ws_per_message_deflate=False,
                log_config=None,
                log_level="critical",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=STOP_SECONDS,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """An event and close code 1001 for everybody, then as uvicorn does."""
        await self.service.say_goodbye()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at a signal, without raising it again afterwards: a stop that was asked for is no failure."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one. Raises InputError.

    It says that it speaks TCP, which `socket.create_server` does not: only then asyncio turns Nagle's algorithm off,
    which would hold the later events of a frame back for 40 ms.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except (OSError, UnicodeError) as error:  # a name that cannot be one, as a..b
        raise _unusable(host, port, error) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _unusable(host, port, error) from None
    return listener


def _unusable(host: str, port: int, error: OSError | UnicodeError) -> InputError:
    reason = (getattr(error, "strerror", None) or str(error)).lower()
    return InputError(f"{host}:{port} cannot be served ({reason}); choose another --host or --port")


def url_of(listener: socket.socket) -> str:
    """Where a browser finds it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(service: Service, listener: socket.socket) -> None:
    """Until SIGINT or SIGTERM, after which the process is to end. Raises what kept the model from being loaded."""
    server = Server(service)
    service.worker.rests_at_the_end = True
    service.worker.when_loaded(lambda: _stop_after_failure(server))
    server.run([listener])
    if service.worker.failure is not None:
        raise service.worker.failure


@contextmanager
def running(service: Service) -> Iterator[str]:
    """Serve in a thread on a free port of the loopback, for as long as the block runs. Gives the URL."""
    server, listener = Server(service), bind("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, args=([listener],), name="voicechat-server", daemon=True)
    thread.start()
    try:
        yield url_of(listener)
    finally:
        server.should_exit = True
        thread.join()


def _stop_after_failure(server: Server) -> None:
    if server.service.worker.failure is not None:
        server.should_exit = True
