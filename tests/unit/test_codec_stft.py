"""The 16-point STFT: forward by definition; inverse with its clamp, on values worked out by hand."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

from tests.models import normal
from voicechat_mlx.codec.stft import ShortStft

STFT = ShortStft(16, 4)
EDGE = 6
WINDOW = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(16) / 16)
SILENT = -50.0
"""A magnitude logit of -50 is 100 / (1 + 100 e⁵⁰): nothing."""
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def logit(magnitude: float) -> float:
    """100 · exp(-softplus(ln 100 - m)) = 100 / (1 + 100 e^-m), solved for m."""
    return math.log(100 / (100 / magnitude - 1))


def decode(features: np.ndarray) -> np.ndarray:
    """(T, 18) → (4 T,): a whole signal, its edges dropped."""
    cache = STFT.make_cache(1)
    body = STFT.inverse(mx.array(features.astype(np.float32))[None], cache)
    return np.asarray(mx.concatenate([body, STFT.flush(cache)], axis=1))[0, EDGE:]


def tone(bin: int, magnitude: float, phase: float, frames: int = 12) -> np.ndarray:
    features = np.zeros((frames, 18))
    features[:, :9] = SILENT
    features[:, bin], features[:, 9 + bin] = logit(magnitude), phase
    return features


def test_channels_are_real_and_imaginary_parts_of_nine_bins() -> None:
    assert STFT.transform(mx.zeros((2, 40))).shape == (2, 10, 18)
    assert decode(np.zeros((10, 18))).shape == (40,)


def test_forward_is_the_windowed_transform_of_the_signal_padded_by_six() -> None:
    wave = normal(1, 48)
    padded = np.pad(np.asarray(wave[0], np.float64), EDGE)
    frames = np.array([padded[4 * t : 4 * t + 16] for t in range(12)]) * WINDOW
    spectrum = np.array([[sum(f * np.exp(-2j * np.pi * k * np.arange(16) / 16)) for k in range(9)] for f in frames])
    np.testing.assert_allclose(STFT.transform(wave)[0], np.concatenate([spectrum.real, spectrum.imag], axis=1), **CLOSE)


def test_a_loud_constant_is_clamped_to_the_window_and_decodes_to_one() -> None:
    """100 / 16 = 6.25 passes every w[n]: each frame is w, then w², divided by the sum of w². One, also at the edges."""
    np.testing.assert_allclose(decode(tone(0, 99.999, 0.0)), 1.0, **CLOSE)
    np.testing.assert_allclose(decode(tone(0, 99.999, math.pi)), -1.0, **CLOSE)


def test_a_quiet_constant_is_not_clamped_and_decodes_to_four_thirds_of_itself() -> None:
    """c = 0.03 stays below w[1] = 0.038. Four windows overlap: Σ w = 2 and Σ w² = 1.5, so c · 2 / 1.5."""
    found = decode(tone(0, 16 * 0.03, 0.0))
    np.testing.assert_allclose(found[EDGE:-EDGE], 0.04, **CLOSE)


def test_a_constant_in_between_is_clamped_where_the_window_is_lower() -> None:
    """c = 0.25. w² sums to 1.5, and of the samples under the four overlapping windows some are cut to w itself:

    offset 0: w = 0, ½, 1, ½ → (¼·½ + ¼·1 + ¼·½) / 1.5 = 1/3;
    offset 2: w = a, b, b, a with a = ½ - √2/4 = 0.1464 < c and b = ½ + √2/4 → (2 a² + 2 c b) / 1.5 = 0.3131133.
    """
    found = decode(tone(0, 16 * 0.25, 0.0, frames=20))
    np.testing.assert_allclose(found[18:60:4], 1 / 3, **CLOSE)  # frames begin at 4 t - 6
    np.testing.assert_allclose(found[20:60:4], 0.3131133, **CLOSE)


def test_the_first_samples_are_divided_by_the_windows_that_reach_them() -> None:
    """Sample 0 lies under frames 0 and 1 only (places 6 and 2): c · (w[6] + w[2]) / (w[6]² + w[2]²)."""
    expected = 0.03 * (WINDOW[6] + WINDOW[2]) / (WINDOW[6] ** 2 + WINDOW[2] ** 2)
    found = decode(tone(0, 16 * 0.03, 0.0))
    assert abs(found[0] - expected) < 1e-6
    assert abs(found[-1] - 0.03 * (WINDOW[9] + WINDOW[13]) / (WINDOW[9] ** 2 + WINDOW[13] ** 2)) < 1e-6


@pytest.mark.parametrize("bin", [0, 8])
def test_the_first_and_last_bin_have_no_imaginary_part(bin: int) -> None:
    np.testing.assert_allclose(decode(tone(bin, 99.0, math.pi / 2)), 0.0, atol=1e-5)


def test_an_inner_bin_counts_twice_and_its_phase_moves_it() -> None:
    """One frame of bin 2 with magnitude 8 m: m cos(2π 2 n / 16 + φ), before window and overlap."""
    frame = tone(2, 8 * 0.02, 0.7, frames=1)
    inverse = 0.02 * np.cos(2 * np.pi * 2 * np.arange(16) / 16 + 0.7)
    clipped = np.clip(inverse, -WINDOW, WINDOW)
    np.testing.assert_allclose(decode(frame), clipped[6:10] / WINDOW[6:10], **CLOSE)


def test_magnitudes_saturate_at_one_hundred_and_stay_finite() -> None:
    features = np.zeros((4, 18))
    for extreme in (-1e4, -90.0, 90.0, 1e4):
        features[:, :9] = extreme
        found = decode(features)
        assert np.isfinite(found).all()
        assert np.abs(found).max() <= 1.0 + 1e-6


def test_very_low_magnitudes_are_silence_whatever_the_phases_say() -> None:
    """Reading magnitude and phase as real and imaginary parts would make a roar of this."""
    features = 3 * np.asarray(normal(441, 18))
    features[:, :9] = -20.0
    assert np.sqrt(np.mean(decode(features) ** 2)) < 1e-3


@pytest.mark.parametrize("cuts", [[1], [1, 2, 3, 4], [7, 8], list(range(1, 20))], ids=str)
def test_the_inverse_in_pieces_gives_the_same_samples(cuts: list[int]) -> None:
    features = normal(1, 20, 18)
    cache = STFT.make_cache(1)
    parts = [STFT.inverse(part, cache) for part in mx.split(features, cuts, axis=1)]
    joined = np.asarray(mx.concatenate([*parts, STFT.flush(cache)], axis=1))[0, EDGE:]
    np.testing.assert_allclose(joined, decode(np.asarray(features[0])), **CLOSE)


@pytest.mark.parametrize(("n_fft", "hop"), [(8, 4), (16, 4), (12, 6), (4, 2), (24, 4)])
def test_a_quiet_signal_survives_there_and_back(n_fft: int, hop: int) -> None:
    """Magnitude and phase of the forward transform, decoded: exact while no inverse frame passes the clamp."""
    stft = ShortStft(n_fft, hop)
    bins = n_fft // 2 + 1
    wave = 0.3 * np.sin(2 * np.pi * np.arange(20 * hop) / 50)
    spectrum = np.asarray(stft.transform(mx.array(wave.astype(np.float32))[None]), np.float64)[0]
    complex_bins = spectrum[:, :bins] + 1j * spectrum[:, bins:]
    magnitude = np.maximum(np.abs(complex_bins), 1e-9)
    features = np.concatenate([np.log(100 / (100 / magnitude - 1)), np.angle(complex_bins)], axis=1)
    cache = stft.make_cache(1)
    body = stft.inverse(mx.array(features.astype(np.float32))[None], cache)
    found = np.asarray(mx.concatenate([body, stft.flush(cache)], axis=1))[0, stft.edge :]
    np.testing.assert_allclose(found, wave, atol=1e-4)
