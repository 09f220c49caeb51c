"""How fast a running server answers, seen from a client: what the network and the service add to the model's time."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from voicechat_mlx.errors import InputError, VoiceChatError
from voicechat_mlx.server.protocol import address_of

RATE = 16000
FRAME_SAMPLES = 1280
FIRST_SAMPLES = 201
"""These complete the first frame; 1280 more complete each one after it."""
WARM_UP_FRAMES = 12
ANSWER_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Milliseconds over one connection, each frame sent when the one before was answered."""

    frames: int
    connect_ms: float
    """From connecting to `session.created`."""
    first_audio_ms: float
    """From the append that completes the first frame to sound in hand, the wait for the next append excluded."""
    round_trip_ms: float
    """Median: from sending the append that completes a frame to having its events."""
    round_trip_p95_ms: float
    compute_ms: float
    """Median of the model's own time for these frames, as the server says."""
    overhead_ms: float
    """Median of the difference: what the service and the network add."""
    overhead_p95_ms: float


def measure(url: str, *, frames: int = 100, token: str | None = None, seed: int = 0) -> Latency:
    """A server's URL, as `voicechat serve` prints it → its latency. Raises InputError, VoiceChatError."""
    address = address_of(url)
    headers = {"Authorization": f"Bearer {token}"} if token else None
    try:
        started = time.perf_counter()
        with connect(address, additional_headers=headers, max_size=None, open_timeout=ANSWER_SECONDS) as socket:
            _await(socket, "session.created")
            connected = time.perf_counter() - started
            return _measure(socket, frames, seed, connected)
    except (OSError, WebSocketException, ValueError) as error:
        raise InputError(f"{url} does not serve conversations ({error}); start one with: voicechat serve") from None


def _measure(socket: ClientConnection, frames: int, seed: int, connected: float) -> Latency:
    formats = {"input": {"format": {"type": "audio/pcm", "rate": RATE}}}
    formats["output"] = {"format": {"type": "audio/pcm", "rate": 22050}}
    _send(socket, "session.update", session={"audio": formats, "voicechat": {"include": ["frames"], "seed": seed}})
    _await(socket, "session.updated")
    noise = np.random.default_rng(seed)
    trips, computing, first_audio = [], [], 0.0
    for number in range(WARM_UP_FRAMES + frames):
        count = FRAME_SAMPLES if number else FIRST_SAMPLES
        pcm = (noise.standard_normal(count) * 1000).astype("<i2").tobytes()
        audio = base64.b64encode(pcm).decode()
        sent = time.perf_counter()
        _send(socket, "input_audio_buffer.append", audio=audio)
        report = _await(socket, "voicechat.frame")
        trip = time.perf_counter() - sent
        first_audio += trip if number < 2 else 0.0
        if number >= WARM_UP_FRAMES:
            trips.append(trip)
            computing.append(report["seconds"])
    overhead = np.subtract(trips, computing) * 1e3
    return Latency(
        frames=frames,
        connect_ms=connected * 1e3,
        first_audio_ms=first_audio * 1e3,
        round_trip_ms=float(np.median(trips)) * 1e3,
        round_trip_p95_ms=float(np.percentile(trips, 95)) * 1e3,
        compute_ms=float(np.median(computing)) * 1e3,
        overhead_ms=float(np.median(overhead)),
        overhead_p95_ms=float(np.percentile(overhead, 95)),
    )


def _send(socket: ClientConnection, type: str, **fields: Any) -> None:
    socket.send(json.dumps({"type": type, **fields}))


def _await(socket: ClientConnection, type: str) -> dict[str, Any]:
    """The next event of that type; what comes before it is passed over. Raises VoiceChatError for an error event."""
    for event in _events(socket):
        if event["type"] == type:
            return event
        if event["type"] == "error":
            raise VoiceChatError(f"the server says: {event['error']['message']} ({event['error']['code']})")
    raise VoiceChatError(f"the server sent no {type}")


def _events(socket: ClientConnection) -> Iterator[dict[str, Any]]:
    while True:
        yield json.loads(socket.recv(timeout=ANSWER_SECONDS))
