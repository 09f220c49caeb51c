"""Sound files and arrays → float32 mono, and back to 16-bit WAV.

Everything is mixed down by the mean and resampled along time only. Full scale is ±1; integers are divided by
2^(bits - 1) on the way in and multiplied by 2^15 on the way out, so a written file reads back within half a step.
"""

from __future__ import annotations

import io
import os
import shlex
import stat
import wave
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from voicechat_mlx.audio.riff import canonical_wav
from voicechat_mlx.errors import AudioError, InputError
from voicechat_mlx.files import replacing

Samples = npt.NDArray[np.float32]

INPUT_SAMPLE_RATE = 16000
"""Hz, what the speech encoder hears."""
SAMPLE_RATES = range(1000, 768001)
"""Hz, of files that are accepted: anything else is a damaged header."""
PEAK_LIMIT = 1e6
"""Full scale is 1. Beyond a million times that, squares in the mel power come near the end of float32."""
LONGEST_SILENCE_SECONDS = 3600.0
"""Appended silence costs as much as speech; more than an hour is a slip of the unit."""
_FRAMES_PER_READ = 1 << 16


class _ForwardReader(soundfile.SoundFile):  # type: ignore[misc]  # soundfile has no types
    """A sound file that is never asked to seek: streamed FLAC does not know its own length."""

    def seekable(self) -> bool:
        """Makes reads take what comes instead of what the header announces."""
        return False


def read_audio(path: str | os.PathLike[str], sample_rate: int = INPUT_SAMPLE_RATE) -> Samples:
    """A WAV, FLAC, OGG or MP3 file of any rate and channel count → float32 [n], mono at `sample_rate` Hz.

    n is the file's length times the ratio of the rates, rounded. Raises AudioError.
    """
    name = os.fspath(path)
    frames, file_rate = _decode(canonical_wav(_read_bytes(name), name), name)
    if file_rate not in SAMPLE_RATES:
        raise AudioError(f"{name} claims {file_rate} Hz; expected {SAMPLE_RATES[0]} to {SAMPLE_RATES[-1]} Hz")
    mono = check_samples(frames.mean(axis=1, dtype=np.float64), name)
    if file_rate == sample_rate:
        return mono
    resampled = soxr.resample(mono, file_rate, sample_rate)
    if len(resampled) == 0:
        raise AudioError(f"{name} holds {len(mono)} samples at {file_rate} Hz, less than one at {sample_rate} Hz")
    return np.ascontiguousarray(resampled, dtype=np.float32)


def check_samples(array: npt.ArrayLike, name: str = "audio", *, allow_empty: bool = False) -> Samples:
    """Floats [n], full scale ±1, n ≥ 1 (or 0 when allowed) → float32 [n]. Raises AudioError naming `name`."""
    try:
        samples = np.asarray(array)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, arrays of types that NumPy does not have
        reason = str(error).splitlines()[0]
        raise AudioError(f"{name} is not an array of numbers ({reason}); give float32 [n]") from None
    if samples.dtype.kind != "f":
        raise AudioError(f"{name} holds {samples.dtype} values; expected floats within ±1 (int16: divide by 32768)")
    if samples.ndim != 1:
        raise AudioError(f"{name} has shape {samples.shape}; expected one channel [n]: take the mean over channels")
    if samples.size == 0 and not allow_empty:
        raise AudioError(f"{name} holds no samples; at least 1 is needed")
    bad = np.flatnonzero(~np.isfinite(samples))
    if bad.size:
        raise AudioError(f"{name}: sample {bad[0]} is {samples[bad[0]]}; every sample must be a finite number")
    peak = float(np.abs(samples).max(initial=0))
    if peak > PEAK_LIMIT:
        raise AudioError(f"{name} peaks at {peak:.3g}; full scale is 1, at most {PEAK_LIMIT:.0f} is accepted")
    return np.ascontiguousarray(samples, dtype=np.float32)


def sample_count(seconds: float, sample_rate: int = INPUT_SAMPLE_RATE) -> int:
    """Seconds of silence to append → whole samples, rounded. Raises InputError unless 0 ≤ seconds ≤ an hour."""
    number = isinstance(seconds, int | float | np.integer | np.floating)
    if not (number and 0 <= seconds <= LONGEST_SILENCE_SECONDS):  # NaN is neither
        raise InputError(
            f"{seconds!r} seconds of silence cannot be appended; give a number from 0 to {LONGEST_SILENCE_SECONDS:.0f}"
        )
    return round(seconds * sample_rate)


def pcm16(samples: npt.ArrayLike) -> npt.NDArray[np.int16]:
    """Floats of any shape → int16: 2^15 steps a unit, rounded to the nearest, clipped at ±full scale.

    So 1.0 is 32767 (the largest there is) and -1.0 is -32768. NaN and infinity raise AudioError: they are faults,
    and a quiet zero would hide them.
    """
    values = np.asarray(samples, dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise AudioError(f"sample {bad[0]} is {values.flat[bad[0]]}; only finite samples can be written")
    return np.clip(np.rint(values * 32768.0), -32768, 32767).astype(np.int16)


def write_wav(path: str | os.PathLike[str], samples: npt.ArrayLike, sample_rate: int) -> None:
    """Floats [n] → a mono 16-bit WAV file, moved into place when whole. Raises AudioError, OutputError."""
    steps = pcm16(samples)
    if steps.ndim != 1:
        raise AudioError(f"samples to write have shape {steps.shape}; expected one channel [n]")
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate)
        file.writeframes(steps.astype("<i2").tobytes())
    with replacing(path) as place:
        place.write_bytes(content.getvalue())


def _read_bytes(name: str) -> bytes:
    """The whole file, or AudioError with what to do."""
    if not name:
        raise AudioError("the name of the sound file is empty")
    try:
        mode = Path(name).stat().st_mode
        if stat.S_ISDIR(mode):
            raise AudioError(f"{name} is a folder; name a sound file in it")
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise AudioError(f"{name} is a device; name a sound file")
        content = Path(name).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise AudioError(f"{name} does not exist; check the path") from None
    except PermissionError:
        raise AudioError(f"{name} may not be read; allow it with: chmod +r {name}") from None
    except (OSError, ValueError) as error:
        raise AudioError(f"{name!r} cannot be read: {error}") from None
    if not content:
        raise AudioError(f"{name} is empty (0 bytes)")
    return content


def _decode(content: bytes, name: str) -> tuple[npt.NDArray[Any], int]:
    """File content → float32 [n, channels] and its sample rate."""
    blocks: list[npt.NDArray[Any]] = []
    try:
        with _ForwardReader(io.BytesIO(content)) as file:
            rate = int(file.samplerate)
            while not blocks or len(blocks[-1]) == _FRAMES_PER_READ:
                blocks.append(file.read(_FRAMES_PER_READ, dtype="float32", always_2d=True))
    except soundfile.LibsndfileError as error:
        raise AudioError(
            f"{name} cannot be decoded ({error.error_string.rstrip('.')}); give a WAV, FLAC, OGG or MP3 file, "
            f"for instance from: ffmpeg -i {shlex.quote(name)} out.wav"
        ) from None
    return np.concatenate(blocks), rate
