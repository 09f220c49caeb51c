"""Waveform → log-mel, as a stream: pushing in pieces gives the same rows as pushing everything.

NumPy, on the host: samples arrive there, a row costs microseconds, and every back end then sees the same mel.
Preemphasis; a symmetric 400-point Hann window centred in a 512-point FFT; power; Slaney mel; log(x + 2⁻²⁴); computed in
float64, kept in float32.
The window is the whole look-ahead: row t covers samples 160·t ± 200 (200 = window_length / 2).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from voicechat_mlx.config import PreprocessorConfig
from voicechat_mlx.conventions import MLX, Conventions

Float32 = NDArray[np.float32]


class MelFilterbank:
    """The constant part: window and mel filters, made once per model."""

    def __init__(self, config: PreprocessorConfig) -> None:
        self.config = config
        self.margin = config.window_length // 2
        """Samples on each side of a row's centre that the window reaches: 200."""

    @cached_property
    def window(self) -> Float32:
        """Symmetric Hann over window_length samples."""
        return np.hanning(self.config.window_length).astype(np.float32)

    @cached_property
    def filters(self) -> Float32:
        """(n_fft / 2 + 1, features) triangles, Slaney scale, each of unit area."""
        config = self.config
        bins = np.linspace(0.0, config.sample_rate / 2, config.n_fft // 2 + 1)
        edges = _slaney_to_hz(np.linspace(0.0, _hz_to_slaney(config.sample_rate / 2), config.features + 2))
        rising = (bins[:, None] - edges[None, :-2]) / np.diff(edges)[:-1]
        falling = (edges[None, 2:] - bins[:, None]) / np.diff(edges)[1:]
        triangles = np.maximum(0.0, np.minimum(rising, falling))
        return (triangles * (2.0 / (edges[2:] - edges[:-2]))).astype(np.float32)

    def rows(self, padded: Float32, count: int) -> Float32:
        """The first `count` rows of a preemphasised signal whose index 0 is `margin` before row 0's centre."""
        config = self.config
        frames = np.lib.stride_tricks.sliding_window_view(padded, config.window_length)[:: config.hop_length][:count]
        spectrum = np.fft.rfft(frames.astype(np.float64) * self.window, config.n_fft, axis=1)
        power = spectrum.real**2 + spectrum.imag**2
        return np.log(power @ self.filters + config.log_zero_guard_value).astype(np.float32)


class MelStream:
    """One session's frontend: samples in, finished rows out."""

    def __init__(self, filterbank: MelFilterbank, conventions: Conventions = MLX) -> None:
        self._bank = filterbank
        self._padding = conventions.stft_padding
        self._head: list[Float32] = []
        self._signal: Float32 | None = None
        self._last_sample = np.float32(0.0)
        self.samples = 0
        """Samples pushed so far."""

    def push(self, samples: Float32) -> Float32:
        """float32 [n] → the rows [t, features] that no later sample can change."""
        if len(samples) == 0:
            return self._no_rows()
        before = np.concatenate([[self._last_sample], samples[:-1]]).astype(np.float32)
        emphasised = samples - np.float32(self._bank.config.preemph) * before
        self._last_sample = samples[-1]
        self.samples += len(samples)
        if self._signal is None:
            self._head.append(emphasised)
            if self.samples <= self._bank.margin:
                return self._no_rows()
            start = np.concatenate(self._head)
            left = self._pad(start, left=self._bank.margin, right=0)
            self._signal, self._head = left, []
        else:
            self._signal = np.concatenate([self._signal, emphasised])
        return self._take_rows()

    def finish(self) -> Float32:
        """The remaining rows, the signal continued past its end: 1 + samples // hop rows in all."""
        if self.samples == 0:
            return self._no_rows()
        if self._signal is None:
            signal = self._pad(np.concatenate(self._head), left=self._bank.margin, right=self._bank.margin)
        else:
            signal = self._pad(self._signal, left=0, right=self._bank.margin)
        self._signal = signal
        return self._take_rows()

    def _take_rows(self) -> Float32:
        assert self._signal is not None
        config = self._bank.config
        count = (len(self._signal) - config.window_length) // config.hop_length + 1
        if count <= 0:
            return self._no_rows()
        rows = self._bank.rows(self._signal, count)
        self._signal = self._signal[count * config.hop_length :]
        return rows

    def _pad(self, signal: Float32, left: int, right: int) -> Float32:
        if self._padding == "constant":
            return np.pad(signal, (left, right))
        return np.pad(signal, (left, right), mode="reflect")

    def _no_rows(self) -> Float32:
        return np.zeros((0, self._bank.config.features), np.float32)


def _hz_to_slaney(hz: float) -> float:
    """Slaney's mel: linear (3 per 200 Hz) below 1 kHz, then 27 mels per factor of 6.4."""
    return hz * 3 / 200 if hz < 1000 else 15 + 27 * float(np.log(hz / 1000) / np.log(6.4))


def _slaney_to_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(mel < 15, mel * 200 / 3, 1000 * 6.4 ** ((mel - 15) / 27))
