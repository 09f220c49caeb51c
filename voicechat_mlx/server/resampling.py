"""PCM16 of any supported rate ↔ the model's samples, as one stream: how it is cut never changes a sample.

The resampler is soxr's, at the quality that whole files get, so a stream equals the file. It holds back about 40 ms.
"""

from __future__ import annotations

import numpy as np
import soxr
from numpy.typing import NDArray

from voicechat_mlx.audio.wav import pcm16

MODEL_INPUT_RATE = 16000
MODEL_OUTPUT_RATE = 22050
RATES = (16000, 22050, 24000)
"""Hz that a client may choose, each way."""

Float32 = NDArray[np.float32]


class RateStream:
    """float32 samples at one rate → at another. Nothing is held back where the rates are equal."""

    def __init__(self, from_rate: int, to_rate: int) -> None:
        same = from_rate == to_rate
        self._resampler = None if same else soxr.ResampleStream(from_rate, to_rate, 1, dtype="float32")

    def push(self, samples: Float32) -> Float32:
        """[n] → what is certain by now."""
        return samples if self._resampler is None else self._resampler.resample_chunk(samples)

    def finish(self) -> Float32:
        """What was held back. Nothing may be pushed after it."""
        nothing = np.zeros(0, np.float32)
        return nothing if self._resampler is None else self._resampler.resample_chunk(nothing, last=True)


class PcmReader:
    """A client's bytes → what the model hears."""

    def __init__(self, rate: int) -> None:
        self._stream = RateStream(rate, MODEL_INPUT_RATE)

    def read(self, pcm: bytes) -> Float32:
        """Whole little-endian PCM16 samples at the client's rate → float32 at 16 kHz, full scale ±1."""
        return self._stream.push(np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32768))

    def finish(self) -> Float32:
        """The end of the last sound."""
        return self._stream.finish()


class PcmWriter:
    """What the model says → bytes for the client."""

    def __init__(self, rate: int) -> None:
        self._stream = RateStream(MODEL_OUTPUT_RATE, rate)

    def write(self, samples: Float32) -> bytes:
        """float32 at 22.05 kHz → little-endian PCM16 at the client's rate. Raises AudioError for NaN."""
        return _bytes(self._stream.push(samples))

    def finish(self) -> bytes:
        """The end of the last sound."""
        return _bytes(self._stream.finish())


def _bytes(samples: Float32) -> bytes:
    return pcm16(samples).astype("<i2").tobytes()
