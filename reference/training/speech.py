"""Synthetic speech with word times: espeak-ng through its library, which the package `espeakng_loader` carries.

Unusual: espeak-ng keeps hidden state from one sentence to the next, so the same call does not give the same samples
twice. Sentences are therefore spoken in fixed batches, each batch in a process of its own with a seeded C random
generator; then everything is reproducible, on any number of cores. Voices with breath (f2, f3, f5, …) never are: they
draw from a generator seeded by the clock.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import soxr
from numpy.typing import NDArray

SAMPLE_RATE = 22050
SYNCHRONOUS = 2
RATE, PITCH, RANGE = 1, 3, 4
CHARACTER, UTF8 = 1, 1
LIST_END, WORD = 0, 1
SILENCE = 160
"""Samples of at most this size (of 32768) count as silence at either end."""
LEAD = 110
"""Samples (5 ms) kept before the first sound."""
PEAK = 10922
"""Every clip's loudest sample: a third of full scale."""
BATCH = 96
"""Sentences to a process."""


@dataclass(frozen=True)
class Voice:
    """An espeak-ng voice with its variant, words per minute, pitch and pitch range (0 … 99)."""

    name: str
    speed: int = 175
    pitch: int = 50
    pitch_range: int = 50


@dataclass(frozen=True)
class Job:
    """A sentence to be spoken by a voice, wanted at a sample rate."""

    text: str
    voice: Voice
    rate: int = SAMPLE_RATE


@dataclass(frozen=True)
class Spoken:
    """One sentence: 16-bit samples, silence trimmed, and the sample at which each word starts."""

    samples: NDArray[np.int16]
    word_starts: tuple[int, ...]


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    )


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


class Synthesiser:
    """espeak-ng, initialised once; `speak` any number of times. One to a process: the library has global state."""

    def __init__(self, seed: int) -> None:
        import espeakng_loader  # a training dependency only

        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        rate = self._library.espeak_Initialize(SYNCHRONOUS, 0, espeakng_loader.get_data_path().encode(), 0)
        assert rate == SAMPLE_RATE, f"espeak-ng speaks at {rate} Hz"
        ctypes.CDLL(None).srand(seed)
        self._pieces: list[NDArray[np.int16]] = []
        self._words: list[tuple[int, int]] = []
        self._callback = _Callback(self._collect)  # kept: the library holds only its address
        self._library.espeak_SetSynthCallback(self._callback)

    def _collect(self, samples: ctypes._Pointer[ctypes.c_short], count: int, events: ctypes._Pointer[_Event]) -> int:
        if samples and count > 0:
            self._pieces.append(np.ctypeslib.as_array(samples, (count,)).astype(np.int16))
        index = 0
        while events[index].type != LIST_END:
            if events[index].type == WORD:
                self._words.append((events[index].text_position - 1, events[index].sample))
            index += 1
        return 0

    def speak(self, text: str, voice: Voice) -> Spoken:
        """One sentence. Raises ValueError for a voice that the library does not have."""
        if self._library.espeak_SetVoiceByName(voice.name.encode()) != 0:
            raise ValueError(f"espeak-ng has no voice {voice.name!r}")
        for parameter, value in ((RATE, voice.speed), (PITCH, voice.pitch), (RANGE, voice.pitch_range)):
            self._library.espeak_SetParameter(parameter, value, 0)
        self._pieces.clear()
        self._words.clear()
        encoded = text.encode()
        self._library.espeak_Synth(encoded, len(encoded) + 1, 0, CHARACTER, 0, UTF8, None, None)
        self._library.espeak_Synchronize()
        return trim(np.concatenate(self._pieces), word_starts(text, self._words))


def word_starts(text: str, events: Sequence[tuple[int, int]]) -> list[int]:
    """The first sample of each word of `text`, from (character, sample) events.

    espeak-ng joins some words into one event; a word without one lies between its neighbours, by their characters.
    """
    known = dict(sorted(events, reverse=True))  # of two events at one character, the earlier counts
    characters = sorted(known)
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    return [round(float(np.interp(start, characters, [known[c] for c in characters]))) for start in starts]


def trim(samples: NDArray[np.int16], starts: Sequence[int]) -> Spoken:
    """Cut the silence at both ends, all but 5 ms at the beginning; word times move along."""
    loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > SILENCE)
    first, last = max(int(loud[0]) - LEAD, 0), int(loud[-1]) + 1
    moved = np.clip(np.array(starts) - first, 0, last - first)
    return Spoken(samples[first:last], tuple(int(start) for start in np.maximum.accumulate(moved)))


def speak_all(jobs: Sequence[Job], seed: int, workers: int) -> Iterator[Spoken]:
    """Every job, in order; each batch of them in a fresh process with its own seed."""
    batches = [(seed + index, jobs[index : index + BATCH]) for index in range(0, len(jobs), BATCH)]
    context = multiprocessing.get_context("fork")
    with context.Pool(workers, maxtasksperchild=1) as pool:
        for spoken in pool.imap(_speak_batch, batches, chunksize=1):
            yield from spoken


def _speak_batch(batch: tuple[int, Sequence[Job]]) -> list[Spoken]:
    seed, jobs = batch
    synthesiser = Synthesiser(seed)
    return [resampled(synthesiser.speak(job.text, job.voice), job.rate) for job in jobs]


def resampled(spoken: Spoken, rate: int) -> Spoken:
    """The same at another rate; its loudest sample is a third of full scale."""
    samples = spoken.samples.astype(np.float32)
    if rate != SAMPLE_RATE:
        samples = soxr.resample(samples, SAMPLE_RATE, rate)
    scaled = np.round(samples * (PEAK / np.abs(samples).max())).astype(np.int16)
    return Spoken(scaled, tuple(start * rate // SAMPLE_RATE for start in spoken.word_starts))
