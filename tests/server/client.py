"""A plain WebSocket client for tests: sends what it is told, however wrong, and keeps what comes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

WAIT_SECONDS = 60.0
"""For one event; generous, since the tests' machine may be busy."""
NATIVE = {
    "audio": {
        "input": {"format": {"type": "audio/pcm", "rate": 16000}},
        "output": {"format": {"type": "audio/pcm", "rate": 22050}},
    }
}
"""A session without resampling."""
Event = dict[str, Any]


class Client:
    """One connection."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def send(self, type: str, **fields: Any) -> None:
        self.socket.send(json.dumps({"type": type, **fields}))

    def append(self, pcm: bytes) -> None:
        self.send("input_audio_buffer.append", audio=base64.b64encode(pcm).decode())

    def flood(self, times: int, type: str, **fields: Any) -> None:
        """Send one thing many times, or until the server has hung up."""
        with suppress(ConnectionClosed):  # what came before the close can still be received
            for _ in range(times):
                self.send(type, **fields)

    def receive(self) -> Event:
        event: Event = json.loads(self.socket.recv(timeout=WAIT_SECONDS))
        return event

    def until(self, type: str) -> list[Event]:
        """All events up to the first of that type, which is the last of the list."""
        seen = [self.receive()]
        while seen[-1]["type"] != type:
            seen.append(self.receive())
        return seen

    def error(self) -> Event:
        """What the next error event says."""
        found: Event = self.until("error")[-1]["error"]
        return found

    def close_code(self) -> tuple[int | None, str]:
        """Read to the end → the server's close code and reason."""
        try:
            while True:
                self.receive()
        except ConnectionClosed as closed:
            return (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (None, "")

    def finish(self, extra_seconds: float = 0.0) -> list[Event]:
        """End the talk → all events up to `voicechat.finished`."""
        self.send("voicechat.finish", extra_seconds=extra_seconds)
        return self.until("voicechat.finished")


@contextmanager
def client(url: str, session: Event | None = NATIVE, **options: Any) -> Iterator[Client]:
    """Connected, greeted, and set up unless `session` is None."""
    with connect(socket_url(url), max_size=None, compression=None, close_timeout=1, **options) as socket:
        found = Client(socket)
        if session is not None:
            found.until("session.created")
            found.send("session.update", session=session)
            found.until("session.updated")
        yield found


def socket_url(url: str) -> str:
    return url.replace("http", "ws", 1) + "/v1/realtime"


def asking_for(*include: str, **session: Any) -> Event:
    """A session without resampling that also sends these extras."""
    return {**NATIVE, **session, "voicechat": {"include": list(include)}}


def pcm16(samples: NDArray[np.float32]) -> bytes:
    """Floats within ±1 → bytes, by truncation: any whole numbers do for an input."""
    return (samples * 32767).astype("<i2").tobytes()


def heard(pcm: bytes) -> NDArray[np.float32]:
    """What the bytes mean."""
    return np.frombuffer(pcm, "<i2").astype(np.float32) / 32768


def sound(events: Iterable[Event]) -> NDArray[np.int16]:
    """All audio deltas, joined."""
    deltas = [event["delta"] for event in events if event["type"] == "response.output_audio.delta"]
    return np.frombuffer(b"".join(map(base64.b64decode, deltas)), "<i2")


def joined(events: Iterable[Event], type: str) -> str:
    """All deltas of one kind, joined."""
    return "".join(event["delta"] for event in events if event["type"] == type)
