"""Sounds that are not speech: the model must stay silent on them and hear through them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Wave = NDArray[np.float64]
Random = np.random.Generator


def white(n: int, rate: int, random: Random) -> Wave:
    """Equal power at every frequency."""
    return random.standard_normal(n)


def pink(n: int, rate: int, random: Random) -> Wave:
    """Power falling with frequency."""
    return coloured(n, random, -0.5)


def brown(n: int, rate: int, random: Random) -> Wave:
    """Power falling with the square of frequency: a rumble."""
    return coloured(n, random, -1.0)


def coloured(n: int, random: Random, exponent: float) -> Wave:
    """Noise whose amplitude goes with frequency^exponent."""
    spectrum = np.fft.rfft(random.standard_normal(n))
    frequency = np.maximum(np.arange(len(spectrum)), 8)
    return np.fft.irfft(spectrum * frequency**exponent, n)


def hum(n: int, rate: int, random: Random) -> Wave:
    """Mains: a low tone and its overtones."""
    time = np.arange(n) / rate
    base = random.choice((50.0, 60.0, 100.0, 120.0))
    return sum((np.sin(2 * np.pi * base * k * time + random.uniform(0, 6.28)) / k for k in range(1, 9)), np.zeros(n))


def tone(n: int, rate: int, random: Random) -> Wave:
    """A steady beep, or several."""
    time = np.arange(n) / rate
    beep = np.sin(2 * np.pi * random.uniform(200, 3000) * time)
    on = np.floor(time / random.uniform(0.1, 0.6)) % 2 == 0
    return beep * (on if random.random() < 0.6 else 1)


def sweep(n: int, rate: int, random: Random) -> Wave:
    """A tone that glides."""
    low, high = sorted(random.uniform(100, 4000, 2))
    frequency = np.linspace(low, high, n) if random.random() < 0.5 else np.linspace(high, low, n)
    return np.sin(2 * np.pi * np.cumsum(frequency) / rate)


def knocks(n: int, rate: int, random: Random) -> Wave:
    """Short bursts that die away: clicks, knocks, keys."""
    wave = np.zeros(n)
    length = int(random.uniform(0.004, 0.08) * rate)
    burst = np.exp(-np.arange(length) / (length / 5))
    for start in random.integers(0, max(n - length, 1), random.integers(1, 9)):
        wave[start : start + length] += random.standard_normal(length) * burst
    return wave


def chord(n: int, rate: int, random: Random) -> Wave:
    """Plucked notes."""
    time = np.arange(n) / rate
    root = random.uniform(110, 440)
    wave = np.zeros(n)
    for ratio in random.choice((1, 1.25, 1.333, 1.5, 1.667, 2), 3, replace=False):
        start = random.uniform(0, 0.5) * n / rate
        wave += np.where(time >= start, np.sin(2 * np.pi * root * ratio * time) * np.exp(-3 * (time - start)), 0)
    return wave


KINDS: tuple[Callable[[int, int, Random], Wave], ...] = (white, pink, brown, hum, tone, sweep, knocks, chord)


def make_noise(index: int, rate: int, seed: int, longest_seconds: float = 4.0) -> NDArray[np.int16]:
    """One noise of the kind `index` mod 8, a third of full scale at most, 0.3 s … `longest_seconds`."""
    random = np.random.default_rng([seed, index])
    n = int(rate * random.uniform(0.3, longest_seconds))
    wave = KINDS[index % len(KINDS)](n, rate, random)
    edge = min(n // 4, rate // 50)
    ramp = np.minimum(1, np.minimum(np.arange(n) + 1, np.arange(n)[::-1] + 1) / edge)
    wave = wave * ramp
    return np.round(wave / np.abs(wave).max() * 10922).astype(np.int16)
