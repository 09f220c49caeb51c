"""The log-mel frontend: row count, floor, preemphasis, window, and that pushing in pieces changes nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.models import Float32, speech
from voicechat_mlx.audio.mel import MelFilterbank, MelStream
from voicechat_mlx.config import PreprocessorConfig
from voicechat_mlx.conventions import MLX, NEMO, Conventions

BANK = MelFilterbank(PreprocessorConfig())
HOP, REACH = 160, 200
"""A row every 10 ms; its 25 ms window reaches 200 samples to each side of its centre."""
CLOSE = 1e-5
"""Rows are computed in float64 and rounded to float32 once; logarithms lie between -17 and 10."""


def log_mel(samples: Float32, conventions: Conventions = MLX) -> Float32:
    stream = MelStream(BANK, conventions)
    return np.concatenate([stream.push(samples), stream.finish()])


def row_by_hand(emphasised: np.ndarray, index: int, mode: str = "reflect") -> np.ndarray:
    """One row straight from the definition: a 512-point transform of the window centred in 512 samples."""
    padded = np.pad(np.asarray(emphasised, np.float64), 256, mode=mode)
    window = np.pad(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 399), 56)
    basis = np.exp(-2j * np.pi * np.outer(np.arange(257), np.arange(512)) / 512)
    power = np.abs(basis @ (padded[HOP * index : HOP * index + 512] * window)) ** 2
    return np.log(power @ BANK.filters.astype(np.float64) + 2.0**-24)


@pytest.mark.parametrize("length", [1, 2, 159, 160, 161, 199, 200, 201, 256, 257, 399, 400, 401, 1279, 1280, 16000])
def test_frame_count_is_one_plus_floor_of_length_over_hop(length: int) -> None:
    rows = log_mel(speech(1.0)[:length])
    assert rows.shape == (1 + length // HOP, 128)
    assert rows.dtype == np.float32
    assert np.isfinite(rows).all()


def test_silence_gives_the_log_guard_floor() -> None:
    rows = log_mel(np.zeros(4000, np.float32))
    assert np.all(rows == np.float32(math.log(2.0**-24)))


def test_preemphasis_leaves_the_first_sample_as_it_is() -> None:
    """A constant 0.5 becomes 0.5, 0.015, 0.015, …; only then does row 0 hold that one click of 0.5."""
    emphasised = np.array([0.5, *[0.5 - 0.97 * 0.5] * 1999])
    rows = log_mel(np.full(2000, 0.5, np.float32))
    np.testing.assert_allclose(rows[0], row_by_hand(emphasised, 0), atol=CLOSE)
    without_click = row_by_hand(np.full(2000, 0.015), 0)
    assert np.all(rows[0, 64:] - without_click[64:] > 3)  # a click is heard at all frequencies, a constant at none


@pytest.mark.parametrize("conventions", [MLX, NEMO], ids=lambda chosen: chosen.name)
def test_every_row_equals_the_definition_written_out(conventions: Conventions) -> None:
    samples = speech(0.2)
    emphasised = np.array([samples[0], *(samples[1:] - 0.97 * samples[:-1])], np.float64)
    rows = log_mel(samples, conventions)
    for index in range(1 + 3200 // HOP):
        np.testing.assert_allclose(rows[index], row_by_hand(emphasised, index, conventions.stft_padding), atol=CLOSE)


def test_filters_have_unit_area_and_follow_slaney_below_one_kilohertz() -> None:
    """Slaney: the first 1000 Hz are linear at 66.67 Hz a mel, and each triangle is scaled by 2 / (high - low)."""
    step = (15 + 27 * math.log(8) / math.log(6.4)) / 129 * 200 / 3  # Hz between centres of the first filters
    peaks = [step * (index + 1) for index in range(20)]
    bins = np.arange(257) * 16000 / 512
    for index in range(20):
        triangle = np.maximum(0, 1 - np.abs(bins - peaks[index]) / step) / step
        np.testing.assert_allclose(BANK.filters[:, index], triangle, atol=1e-7)


def test_a_row_depends_on_200_samples_to_each_side_and_on_one_more_before() -> None:
    """The one more is preemphasis, which looks one sample back."""
    samples = speech(0.5)
    before = log_mel(samples)[20]
    centre = 20 * HOP
    for place, changes in [(centre - 202, False), (centre - 198, True), (centre + 198, True), (centre + 200, False)]:
        moved = samples.copy()
        moved[place] += 0.5
        assert np.array_equal(log_mel(moved)[20], before) is not changes


@pytest.mark.parametrize("conventions", [MLX, NEMO], ids=lambda chosen: chosen.name)
@pytest.mark.parametrize("length", [1, 3, 159, 160, 200, 201, 202, 399, 400, 2500])
def test_pushing_sample_by_sample_gives_the_same_rows(conventions: Conventions, length: int) -> None:
    samples = speech(0.2, seed=1)[:length]
    stream = MelStream(BANK, conventions)
    parts = [stream.push(samples[index : index + 1]) for index in range(length)]
    np.testing.assert_array_equal(np.concatenate([*parts, stream.finish()]), log_mel(samples, conventions))


def test_rows_come_as_soon_as_no_later_sample_can_change_them() -> None:
    """Row t needs the samples below 160 t + 200; only row 0 waits for one more, the farthest that it reflects."""
    stream, rows = MelStream(BANK, MLX), 0
    for pushed, sample in enumerate(speech(0.1), start=1):
        rows += len(stream.push(np.array([sample])))
        assert rows == (0 if pushed <= REACH else (pushed - REACH) // HOP + 1)


def test_the_stream_keeps_less_than_a_window_between_pushes() -> None:
    stream = MelStream(BANK, MLX)
    for _ in range(50):
        stream.push(speech(0.1))
        assert stream._signal is not None
        assert len(stream._signal) < 400


def test_no_samples_give_no_rows() -> None:
    stream = MelStream(BANK, MLX)
    assert stream.push(np.zeros(0, np.float32)).shape == (0, 128)
    assert stream.finish().shape == (0, 128)
