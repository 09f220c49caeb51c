"""A talk with microphone and loudspeaker, by way of PortAudio (package `sounddevice`, extra `talk`).

PortAudio calls back from a thread of its own, which only moves samples between here and two small buffers.
"""

from __future__ import annotations

import importlib
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from voicechat_mlx.cli.talk_files import Answer
from voicechat_mlx.cli.talk_partners import Partner
from voicechat_mlx.errors import InputError
from voicechat_mlx.events import Done

Float32 = NDArray[np.float32]
RESERVE_SECONDS = 0.12
"""Of sound before playing begins, and again after a gap: a frame, and half a frame against lateness."""
MOST_WAITING_SECONDS = 30.0
"""That the microphone may be ahead of the model; then the oldest is dropped."""
MOST_AT_ONCE = 4 * 1280
WAIT_SECONDS = 0.2


def require_sounddevice() -> Any:
    """The module. Raises InputError with what installs it."""
    try:
        return importlib.import_module("sounddevice")
    except ImportError:
        raise InputError(
            "talk needs sounddevice; install it with: pip install sounddevice, or use --input-file"
        ) from None
    except OSError:
        raise InputError(
            "sounddevice needs PortAudio; install it (Debian, Ubuntu: apt install libportaudio2), or use --input-file"
        ) from None


def converse(
    partner: Partner, microphone: str | None, speaker: str | None, answer: Answer, stopping: threading.Event
) -> None:
    """Until `stopping`, or until the partner ends it. What was said until then is heard, what is answered is played."""
    ears, mouth = Ears(partner.input_rate), Mouth(partner.output_rate)

    def go_on() -> bool:
        """Whether the partner does, too."""
        events = partner.push(ears.take())
        mouth.play(answer.take(events))
        answer.display.delays = _delays(ears, mouth)
        return not any(isinstance(event, Done) for event in events)

    with _output(mouth, speaker):
        going_on = True
        with _input(ears, microphone):
            while going_on and not stopping.is_set():
                going_on = go_on()
        while going_on and ears.waiting_seconds:
            going_on = go_on()
        mouth.play(answer.take_all(partner.finish()))
        mouth.finish()


def _delays(ears: Ears, mouth: Mouth) -> str:
    delay = max(0.0, ears.heard_seconds - mouth.played_seconds)
    lost = f", {ears.lost_seconds:.1f} s lost" if ears.lost_seconds else ""
    return f"delay {delay * 1e3:.0f} ms, backlog {ears.waiting_seconds:.1f} s, gaps {mouth.gaps}{lost}"


class Ears:
    """What the microphone heard and the model has not."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._pieces: deque[Float32] = deque()
        self._changed = threading.Condition()
        self._waiting, self._heard, self._lost = 0, 0, 0

    def hear(self, samples: Float32) -> None:
        """Called by PortAudio's thread."""
        with self._changed:
            self._pieces.append(samples)
            self._waiting += len(samples)
            self._heard += len(samples)
            while self._waiting > MOST_WAITING_SECONDS * self.rate:
                dropped = len(self._pieces.popleft())
                self._waiting -= dropped
                self._lost += dropped
            self._changed.notify()

    def take(self) -> Float32:
        """A few frames at most; empty when nothing is heard for a moment."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting > 0, WAIT_SECONDS)
            taken: list[Float32] = []
            while self._pieces and sum(map(len, taken)) < MOST_AT_ONCE:
                taken.append(self._pieces.popleft())
            self._waiting -= sum(map(len, taken))
        return np.concatenate([np.zeros(0, np.float32), *taken])

    @property
    def heard_seconds(self) -> float:
        """In all."""
        return self._heard / self.rate

    @property
    def waiting_seconds(self) -> float:
        """Not taken yet."""
        return self._waiting / self.rate

    @property
    def lost_seconds(self) -> float:
        """Dropped, because the model is slower than speech."""
        return self._lost / self.rate


class Mouth:
    """What was answered and is to be played."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.gaps = 0
        self._samples = np.zeros(0, np.float32)
        self._changed = threading.Condition()
        self._flowing, self._ending, self._played = False, False, 0

    def play(self, pieces: list[Float32]) -> None:
        """After what waits already."""
        with self._changed:
            self._samples = np.concatenate([self._samples, *pieces])

    def finish(self) -> None:
        """Nothing follows: wait until all is played, as long as it moves at all."""
        with self._changed:
            self._ending = True
            while len(self._samples) and self._changed.wait(2 * RESERVE_SECONDS + WAIT_SECONDS):
                pass

    def speak(self, count: int) -> Float32:
        """The next samples for the loudspeaker. Called by PortAudio's thread."""
        with self._changed:
            if not self._flowing:
                reserve = 1 if self._ending else RESERVE_SECONDS * self.rate
                self._flowing = len(self._samples) >= reserve
            if not self._flowing:
                return np.zeros(count, np.float32)
            taken, self._samples = self._samples[:count], self._samples[count:]
            self._played += len(taken)
            if len(taken) < count:
                self._flowing = False
                self.gaps += not self._ending
            self._changed.notify()
            return np.concatenate([taken, np.zeros(count - len(taken), np.float32)])

    @property
    def played_seconds(self) -> float:
        """In all."""
        return self._played / self.rate


@contextmanager
def _input(ears: Ears, device: str | None) -> Iterator[None]:
    """The microphone, at the wanted rate or resampled to it."""
    sounddevice = require_sounddevice()
    with _faults_named(sounddevice, "microphone", device):
        rate = _possible_rate(sounddevice, "input", device, ears.rate)
        change = soxr.ResampleStream(rate, ears.rate, 1) if rate != ears.rate else None

        def hear(data: Float32, frames: int, time: Any, status: Any) -> None:
            samples = data[:, 0].copy()
            ears.hear(change.resample_chunk(samples) if change else samples)

        stream = sounddevice.InputStream(
            samplerate=rate, channels=1, dtype="float32", device=_named(device), latency="low", callback=hear
        )
    with stream:
        yield


@contextmanager
def _output(mouth: Mouth, device: str | None) -> Iterator[None]:
    """The loudspeaker, at the wanted rate or resampled from it."""
    sounddevice = require_sounddevice()
    with _faults_named(sounddevice, "speaker", device):
        rate = _possible_rate(sounddevice, "output", device, mouth.rate)
        change = soxr.ResampleStream(mouth.rate, rate, 1) if rate != mouth.rate else None
        held = np.zeros(0, np.float32)

        def speak(data: Float32, frames: int, time: Any, status: Any) -> None:
            nonlocal held
            while change and len(held) < frames:
                held = np.concatenate([held, change.resample_chunk(mouth.speak(256))])
            data[:, 0] = held[:frames] if change else mouth.speak(frames)
            held = held[frames:]

        stream = sounddevice.OutputStream(
            samplerate=rate, channels=1, dtype="float32", device=_named(device), latency="low", callback=speak
        )
    with stream:
        yield


def _possible_rate(sounddevice: Any, way: str, device: str | None, rate: int) -> int:
    """The wanted rate where the device has it, else the device's own."""
    check = getattr(sounddevice, f"check_{way}_settings")
    try:
        check(device=_named(device), samplerate=rate, channels=1, dtype="float32")
        return rate
    except sounddevice.PortAudioError:
        return int(sounddevice.query_devices(_named(device), way)["default_samplerate"])


def _named(device: str | None) -> int | str | None:
    """A number is an index of PortAudio's list, anything else a part of a name."""
    return int(device) if device is not None and device.isdigit() else device


@contextmanager
def _faults_named(sounddevice: Any, what: str, device: str | None) -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # no device, or several, of that name
        reason = " ".join(str(error).split())
        raise InputError(f"--{what} {device}: {reason}; `python -m sounddevice` lists them") from None
    except sounddevice.PortAudioError as error:
        reason = " ".join(str(error).split())
        advice = "plug one in, choose another, or use --input-file"
        raise InputError(f"the {what} cannot be used ({reason}); {advice}") from None
