"""Which arrays pass as sound, how seconds become samples, and the way out to a 16-bit WAV file."""

from __future__ import annotations

import struct
import wave

import numpy as np
import pytest

from voicechat_mlx.audio.wav import check_samples, pcm16, read_audio, sample_count, write_wav
from voicechat_mlx.errors import AudioError, InputError, OutputError

STEPS = [0, 1, -1, 16384, -16384, 32767, -32768]
VALUES = [0.0, 2**-15, -(2**-15), 0.5, -0.5, 1 - 2**-15, -1.0]
"""STEPS / 2^15, by hand."""


def test_values_no_audio_has_are_refused() -> None:
    with pytest.raises(AudioError, match=r"peaks at 2e\+06; full scale is 1"):
        check_samples(np.float32([0, -2e6]))


@pytest.mark.parametrize("values", [np.ones(5), -np.ones(5), np.zeros(5), np.full(5, 3.5), np.float16([0.5])])
def test_clipping_direct_current_and_silence_are_valid(values) -> None:
    samples = check_samples(values)
    assert samples.dtype == np.float32
    np.testing.assert_array_equal(samples, values)


@pytest.mark.parametrize("shape", [(), (4, 2), (1, 4), (1, 1, 4)])
def test_arrays_of_another_rank_are_refused(shape) -> None:
    with pytest.raises(AudioError, match=r"has shape \(.*\); expected one channel \[n\]"):
        check_samples(np.zeros(shape))


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.uint8, bool, complex, object])
def test_arrays_that_are_not_floats_are_refused(dtype) -> None:
    with pytest.raises(AudioError, match="expected floats within ±1"):
        check_samples(np.zeros(4, dtype))


def test_an_empty_array_is_refused_unless_allowed() -> None:
    with pytest.raises(AudioError, match="holds no samples"):
        check_samples(np.zeros(0))
    assert check_samples(np.zeros(0), allow_empty=True).shape == (0,)


# Seconds


@pytest.mark.parametrize(
    ("seconds", "count"), [(0, 0), (0.05, 800), (0.24, 3840), (3.0, 48000), (1e-5, 0), (0.1, 1600)]
)
def test_seconds_are_rounded_to_samples(seconds, count) -> None:
    assert sample_count(seconds) == count


@pytest.mark.parametrize("seconds", [-0.001, float("nan"), float("inf"), -float("inf"), 3601])
def test_seconds_that_cannot_be_appended_are_refused(seconds) -> None:
    with pytest.raises(InputError, match="seconds of silence cannot be appended"):
        sample_count(seconds)


# The way out


def test_pcm16_clips_and_rounds() -> None:
    given = [1.0, -1.0, 1.5, -1.5, 0.0, 1.4 / 32768, 1.6 / 32768, -1.6 / 32768, 0.99999]
    assert pcm16(given).tolist() == [32767, -32768, 32767, -32768, 0, 1, 2, -2, 32767]
    assert pcm16(np.float32(given)).dtype == np.int16


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_pcm16_refuses_what_is_not_finite(bad) -> None:
    with pytest.raises(AudioError, match="sample 1 is"):
        pcm16([0.0, bad])


def test_a_written_file_is_mono_pcm16_at_its_rate_and_reads_back_exactly(tmp_path) -> None:
    write_wav(tmp_path / "out.wav", VALUES, 22050)
    with wave.open(str(tmp_path / "out.wav")) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate(), file.getnframes()) == (1, 2, 22050, 7)
        assert struct.unpack("<7h", file.readframes(7)) == tuple(STEPS)
    assert (tmp_path / "out.wav").stat().st_size == 44 + 14
    np.testing.assert_array_equal(read_audio(tmp_path / "out.wav", 22050), np.float32(VALUES))


def test_nothing_is_written_when_the_samples_are_refused(tmp_path) -> None:
    (tmp_path / "out.wav").write_bytes(b"old")
    for samples, message in [([0.0, np.nan], "sample 1"), (np.zeros((2, 2)), "expected one channel")]:
        with pytest.raises(AudioError, match=message):
            write_wav(tmp_path / "out.wav", samples, 22050)
    assert [path.name for path in tmp_path.iterdir()] == ["out.wav"]
    assert (tmp_path / "out.wav").read_bytes() == b"old"


def test_a_missing_output_folder_is_not_made(tmp_path) -> None:
    with pytest.raises(OutputError, match="does not exist; make it with: mkdir -p"):
        write_wav(tmp_path / "none" / "out.wav", VALUES, 22050)
    assert not list(tmp_path.iterdir())
