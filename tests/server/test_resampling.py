"""Streams of samples: cutting changes nothing, and whole numbers survive both ways."""

from __future__ import annotations

import numpy as np
import pytest
import soxr
from hypothesis import given
from hypothesis import strategies as st

from tests.models import speech
from tests.server.drawing import drawn
from voicechat_mlx.server.resampling import RATES, PcmReader, PcmWriter


def bytes_of(rate: int, seconds: float = 0.3) -> bytes:
    return (speech(seconds, sample_rate=rate) * 32767).astype("<i2").tobytes()


@drawn(25)
@given(st.sampled_from(RATES), st.lists(st.integers(1, 5000), min_size=1, max_size=6))
def test_pieces_of_any_size_give_what_the_whole_file_gives(rate: int, sizes: list[int]) -> None:
    pcm = bytes_of(rate)
    reader, pieces, begin, turn = PcmReader(rate), [], 0, 0
    while begin < len(pcm):
        count = 2 * sizes[turn % len(sizes)]
        pieces.append(reader.read(pcm[begin : begin + count]))
        begin, turn = begin + count, turn + 1
    pieces.append(reader.finish())
    floats = np.frombuffer(pcm, "<i2").astype(np.float32) / 32768
    expected = floats if rate == 16000 else soxr.resample(floats, rate, 16000)
    np.testing.assert_array_equal(np.concatenate(pieces), expected)


@pytest.mark.parametrize(("rate", "samples"), [(16000, 1280), (22050, 1764), (24000, 1920)])
def test_eighty_milliseconds_are_eighty_milliseconds_at_every_rate(rate: int, samples: int) -> None:
    writer = PcmWriter(rate)
    written = b"".join(writer.write(np.zeros(1764, np.float32)) for _ in range(50)) + writer.finish()
    assert len(written) == 2 * 50 * samples


def test_at_the_models_own_rates_nothing_is_held_back_and_whole_numbers_survive() -> None:
    numbers = np.array([0, 1, -1, 32767, -32768, 12345], "<i2")
    floats = PcmReader(16000).read(numbers.tobytes())
    assert floats.tolist() == [0, 1 / 32768, -1 / 32768, 32767 / 32768, -1.0, 12345 / 32768]
    assert PcmWriter(22050).write(floats) == numbers.tobytes()


def test_too_loud_is_clipped_and_not_wrapped() -> None:
    loud = np.array([1.0, 1.5, -1.0, -1.5], np.float32)
    assert np.frombuffer(PcmWriter(22050).write(loud), "<i2").tolist() == [32767, 32767, -32768, -32768]
