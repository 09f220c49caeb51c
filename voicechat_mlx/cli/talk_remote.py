"""A conversation with a running `voicechat serve`, in the events that a session here would give. See docs/online.md."""

from __future__ import annotations

import base64
import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from voicechat_mlx.audio.wav import pcm16
from voicechat_mlx.cli.streams import complain
from voicechat_mlx.errors import InputError, VoiceChatError
from voicechat_mlx.events import Audio, Done, Event, FrameTiming, FunctionDelta, TextDelta, TranscriptDelta
from voicechat_mlx.server.protocol import address_of

INPUT_RATE, OUTPUT_RATE = 16000, 22050
FRAME = 1280
BLOCK_FRAMES = 8
MOST_FRAMES_AHEAD = 250
"""20 s, below what the server sheds."""
ANSWER_SECONDS = 360.0
"""For one event; loading a model may take minutes."""
DELTAS = {
    "conversation.item.input_audio_transcription.delta": TranscriptDelta,
    "response.output_audio_transcript.delta": TextDelta,
    "voicechat.function_text.delta": FunctionDelta,
}


@contextmanager
def remote(url: str, *, token: str | None, prompt: str | None, seed: int) -> Iterator[Remote]:
    """Connected and set up. Raises InputError for a server that is not there or wants a token, VoiceChatError."""
    address = address_of(url)
    headers = {"Authorization": f"Bearer {token}"} if token else None
    try:
        socket = connect(address, additional_headers=headers, max_size=None, compression=None)
    except InvalidStatus as error:
        if error.response.status_code == 401:
            raise InputError(f"{url} wants a token; give the one it was started with: --token T") from None
        raise InputError(
            f"{url} refuses to talk (HTTP {error.response.status_code}); use the URL that it printed"
        ) from None
    except (OSError, WebSocketException, ValueError) as error:
        raise InputError(f"{url} does not serve conversations ({error}); start one with: voicechat serve") from None
    with socket:
        yield Remote(socket, prompt=prompt, seed=seed)


class Remote:
    """One connection. A thread reads, so that the server never waits for us."""

    input_rate, output_rate, block = INPUT_RATE, OUTPUT_RATE, BLOCK_FRAMES * FRAME

    def __init__(self, socket: ClientConnection, *, prompt: str | None, seed: int) -> None:
        self._socket = socket
        self._told: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._sent = 0
        self._answered = 0
        self._over = False
        threading.Thread(target=self._read, name="voicechat-talk", daemon=True).start()
        rates = {"input": INPUT_RATE, "output": OUTPUT_RATE}
        formats = {way: {"format": {"type": "audio/pcm", "rate": rate}} for way, rate in rates.items()}
        session: dict[str, Any] = {"type": "realtime", "audio": formats}
        session["voicechat"] = {"include": ["frames"], "seed": seed}
        self._send("session.update", session=session if prompt is None else {**session, "instructions": prompt})
        while self._next()["type"] != "session.updated":
            pass

    def push(self, samples: NDArray[np.float32]) -> list[Event]:
        """Sends; what has been told by now. Waits only while very much is unanswered."""
        if len(samples):
            pcm = pcm16(samples).astype("<i2").tobytes()
            self._send("input_audio_buffer.append", audio=base64.b64encode(pcm).decode())
            self._sent += len(samples)
        events: list[Event] = []
        while not self._over and (self._sent // FRAME - self._answered > MOST_FRAMES_AHEAD or not self._told.empty()):
            events += self._translate(self._next())
        return events

    def finish(self) -> Iterator[Event]:
        """The rest, as it comes."""
        if not self._over:
            self._send("voicechat.finish")
        while not self._over:
            yield from self._translate(self._next())

    def _translate(self, event: dict[str, Any]) -> Iterator[Event]:
        kind = event["type"]
        if kind in DELTAS:
            yield DELTAS[kind](frame=event["frame"], text=event["delta"])
        elif kind == "response.output_audio.delta":
            pcm = np.frombuffer(base64.b64decode(event["delta"]), "<i2")
            yield Audio(frame=event["frame"], samples=pcm.astype(np.float32) / np.float32(32768))
        elif kind == "voicechat.frame":
            self._answered += 1
            yield FrameTiming(frame=event["frame"], seconds={"server": event["seconds"]})
        elif kind == "voicechat.finished":
            self._over = True
            yield Done(frame=event["frames"], reason=event["reason"])

    def _next(self) -> dict[str, Any]:
        """The next event.

        Raises VoiceChatError when the server hangs up or refuses what was sent, InputError where that was the user's.
        """
        try:
            event = self._told.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            raise VoiceChatError(f"the server said nothing for {ANSWER_SECONDS:g} s; try again") from None
        if event is None:
            raise VoiceChatError("the connection to the server was lost; try again")
        if event["type"] == "error":
            error = event["error"]
            line = f"the server says: {error['message']} ({error['code']})"
            if str(error.get("param")).startswith("session."):  # such as a system prompt longer than it takes
                raise InputError(line)
            if error["code"] != "backlog_full":
                raise VoiceChatError(line)
            complain(f"voicechat: {line}")
        return event

    def _send(self, type: str, **fields: Any) -> None:
        with suppress(ConnectionClosed):  # `_next` says why
            self._socket.send(json.dumps({"type": type, **fields}))

    def _read(self) -> None:
        with suppress(ConnectionClosed):
            for message in self._socket:
                self._told.put(_event(message))
        self._told.put(None)


def _event(message: str | bytes) -> dict[str, Any]:
    """What a server says; in the words of an error where it is no event of the protocol."""
    with suppress(ValueError, RecursionError):
        event = json.loads(message)
        if isinstance(event, dict) and isinstance(event.get("type"), str):
            return event
    error = {
        "code": "invalid_event",
        "message": f"something that is no event, {message[:40]!r}; is it `voicechat serve`?",
    }
    return {"type": "error", "error": error}
