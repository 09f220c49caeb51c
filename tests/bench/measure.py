"""What is measured, for any program that can answer. The peer's script imports it too: standard library and NumPy only.

A run prints one JSON object: milliseconds per stage for every 80 ms frame of a stream, seconds for whole recordings,
and what was answered, so that two programs can be told to compute the same thing.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import wave
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

STAGES = ("perception", "rnnt", "llm", "talker", "codec")
SAMPLE_RATE = 16_000
FRAME_SAMPLES = 1280  # 80 ms
WARM_UP_FRAMES = 5

Samples = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What a program made of a recording; F frames of 80 ms, Q codebooks."""

    text: NDArray[np.int32]
    """[F]."""
    codes: NDArray[np.int32]
    """[F, Q]."""
    audio: Samples
    """[1764·F]."""
    transcript: str


class Program(Protocol):
    """A program with its checkpoint loaded. No system prompt, no silence added, seed 0."""

    offline_modes: tuple[str, ...]
    """Names of its ways to answer a whole recording, the fastest first."""

    def stream(self, frames: list[Samples]) -> list[dict[str, float]]:
        """A session fed 80 ms pushes → milliseconds for each: by stage, and `total`."""

    def answer(self, samples: Samples, mode: str) -> Answer:
        """A whole recording → what it answers."""


def main(load: Callable[[Path], Program], describe: Callable[[], dict[str, Any]]) -> None:
    """The command line of both scripts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("question", type=Path, help="WAV, 16 kHz mono PCM16")
    parser.add_argument("--frames", type=int, default=60, help="frames to stream, warm-up not counted")
    parser.add_argument("--seconds", type=int, nargs="*", default=[1, 2, 4, 8], help="lengths of whole recordings")
    parser.add_argument("--modes", type=int, default=1, help="how many of the offline modes to time, the fastest first")
    options = parser.parse_args()
    speech = read_speech(options.question)
    begin = time.perf_counter()
    program = load(options.checkpoint)
    loaded = time.perf_counter() - begin
    modes = program.offline_modes[: options.modes]
    answer = program.answer(lengthened(speech, 2 * SAMPLE_RATE), modes[0])  # warms up, too
    stream = program.stream(frames_of(speech, WARM_UP_FRAMES + options.frames))[WARM_UP_FRAMES:]
    offline = {mode: {} for mode in modes}
    for mode in modes:
        for seconds in options.seconds:
            samples = lengthened(speech, seconds * SAMPLE_RATE)
            begin = time.perf_counter()
            program.answer(samples, mode)
            offline[mode][seconds] = time.perf_counter() - begin
    said = {name: value if isinstance(value, str) else value.tolist() for name, value in asdict(answer).items()}
    about = describe() | {"threads": os.environ.get("OMP_NUM_THREADS", "default")}
    print(json.dumps({"about": about, "load": loaded, "stream": stream, "offline": offline, "answer": said}))


def read_speech(path: Path) -> Samples:
    """PCM16 → float32 in [-1, 1)."""
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768


def lengthened(samples: Samples, length: int) -> Samples:
    """Repeated and cut to `length` samples."""
    return np.tile(samples, -(-length // len(samples)))[:length]


def frames_of(samples: Samples, count: int) -> list[Samples]:
    """`count` pushes of 80 ms."""
    return list(lengthened(samples, count * FRAME_SAMPLES).reshape(count, FRAME_SAMPLES))
