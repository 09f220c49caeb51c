"""Sound files in every flavour that writers produce, built here byte by byte."""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voicechat_mlx.audio.wav import check_samples, read_audio
from voicechat_mlx.errors import AudioError

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
GUID_TAIL = bytes.fromhex("000000001000800000aa00389b71")
"""What follows the two-byte format tag in a WAVE_FORMAT_EXTENSIBLE sub-format."""

STEPS = [0, 1, -1, 16384, -16384, 32767, -32768]
VALUES = [0.0, 2**-15, -(2**-15), 0.5, -0.5, 1 - 2**-15, -1.0]
"""STEPS / 2^15, by hand."""
STEP_BYTES = struct.pack("<7h", *STEPS)


def chunk(identifier: bytes, body: bytes, size: int | None = None, pad: bool = True) -> bytes:
    return identifier + struct.pack("<I", len(body) if size is None else size) + body + b"\0" * (pad and len(body) % 2)


def fmt(tag: int = PCM, bits: int = 16, channels: int = 1, rate: int = 16000, extra: bytes = b"") -> bytes:
    width = channels * bits // 8
    return chunk(b"fmt ", struct.pack("<HHIIHH", tag, channels, rate, rate * width, width, bits) + extra)


def riff(*chunks: bytes, size: int | None = None) -> bytes:
    return chunk(b"RIFF", b"WAVE" + b"".join(chunks), size)


def read(folder: Path, content: bytes, name: str = "in.wav") -> np.ndarray:
    path = folder / name
    path.write_bytes(content)
    return read_audio(path)


# Sample formats: CASES "WAV headers"


@pytest.mark.parametrize(
    ("tag", "bits", "data", "values"),
    [
        (PCM, 8, bytes([0, 128, 192, 255]), [-1.0, 0.0, 0.5, 127 / 128]),
        (PCM, 16, STEP_BYTES, VALUES),
        (PCM, 24, b"\x00\x00\x40" + b"\x00\x00\x80" + b"\xff\xff\x7f", [0.5, -1.0, 1 - 2**-23]),
        (PCM, 32, struct.pack("<3i", 2**30, -(2**31), 0), [0.5, -1.0, 0.0]),
        (FLOAT, 32, struct.pack("<4f", 0.25, -1.5, 1e-9, 3.0), [0.25, -1.5, 1e-9, 3.0]),
        (FLOAT, 64, struct.pack("<3d", 0.1, -0.7, 1.0), [0.1, -0.7, 1.0]),
    ],
)
def test_every_sample_format_reads_as_its_own_values(tmp_path, tag, bits, data, values) -> None:
    samples = read(tmp_path, riff(fmt(tag, bits), chunk(b"data", data)))
    assert samples.dtype == np.float32
    np.testing.assert_allclose(samples, values, rtol=1e-7)


@pytest.mark.parametrize(("tag", "bits", "data"), [(PCM, 16, STEP_BYTES), (FLOAT, 32, struct.pack("<7f", *VALUES))])
def test_an_extensible_header_of_40_bytes_is_understood(tmp_path, tag, bits, data) -> None:
    extension = struct.pack("<HHIH", 22, bits, 4, tag) + GUID_TAIL
    header = fmt(EXTENSIBLE, bits, extra=extension)
    assert len(header) == 8 + 40
    np.testing.assert_array_equal(read(tmp_path, riff(header, chunk(b"data", data))), np.float32(VALUES))


# Containers


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(riff(fmt(), chunk(b"data", STEP_BYTES, 0)), id="data size 0"),
        pytest.param(riff(fmt(), chunk(b"data", STEP_BYTES, 0), size=0), id="both sizes 0"),
        pytest.param(riff(fmt(), chunk(b"data", STEP_BYTES, 0xFFFFFFFF), size=0xFFFFFFFF), id="both sizes FFFFFFFF"),
        pytest.param(riff(fmt(), chunk(b"data", STEP_BYTES, 0x7FFFF000), size=0x7FFFF024), id="sizes of 2 GiB"),
        pytest.param(riff(fmt(), chunk(b"LIST", b"odd"), chunk(b"data", STEP_BYTES)), id="odd chunk, padded"),
        pytest.param(riff(fmt(), chunk(b"LIST", b"odd", pad=False), chunk(b"data", STEP_BYTES)), id="odd chunk, bare"),
        pytest.param(riff(chunk(b"LIST", b"abc"), fmt(), chunk(b"data", STEP_BYTES)), id="notes first"),
        pytest.param(riff(chunk(b"data", STEP_BYTES), fmt()), id="data before format"),
        pytest.param(riff(fmt(), chunk(b"data", STEP_BYTES), chunk(b"id3 ", b"abc")), id="notes last"),
        pytest.param(riff(fmt(), chunk(b"data", STEP_BYTES + b"\x01")), id="half a sample at the end"),
    ],
)
def test_every_container_gives_the_same_samples(tmp_path, content) -> None:
    np.testing.assert_array_equal(read(tmp_path, content), np.float32(VALUES))


def test_a_stream_that_starts_with_digital_silence_is_not_taken_for_an_empty_file(tmp_path) -> None:
    samples = read(tmp_path, riff(fmt(), chunk(b"data", bytes(64) + STEP_BYTES, 0)))
    np.testing.assert_array_equal(samples, np.float32([0.0] * 32 + VALUES))


def test_an_empty_data_chunk_before_notes_is_no_audio(tmp_path) -> None:
    with pytest.raises(AudioError, match="holds no samples; at least 1 is needed"):
        read(tmp_path, riff(fmt(), chunk(b"data", b""), chunk(b"LIST", b"INFOabcd")))


def test_truncated_data_are_used_up_to_the_last_whole_sample_and_reported(tmp_path, caplog) -> None:
    whole = riff(fmt(), chunk(b"data", STEP_BYTES))
    samples = read(tmp_path, whole[:-5])  # 14 bytes of samples less 5: four whole samples and a half
    np.testing.assert_array_equal(samples, np.float32(VALUES[:4]))
    assert "announces 14 bytes of samples and 9 are there" in caplog.text


@pytest.mark.parametrize("kept", [4, 11, 12, 20, 36, 43, 44])
def test_a_file_cut_inside_its_header_is_refused(tmp_path, kept) -> None:
    with pytest.raises(AudioError):
        read(tmp_path, riff(fmt(), chunk(b"data", STEP_BYTES))[:kept])


@pytest.mark.parametrize(("name", "kind"), [("a.flac", "FLAC"), ("a.ogg", "OGG"), ("a.mp3", "MP3"), ("a.wav", "WAV")])
def test_compressed_files_are_heard(tmp_path, name, kind) -> None:
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    content = io.BytesIO()
    soundfile.write(content, tone, 16000, format=kind)
    samples = read(tmp_path, content.getvalue(), name)
    assert abs(len(samples) - 16000) <= 2 * 1152  # MP3 comes in whole frames of up to 1152
    assert np.sqrt(np.mean(samples**2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.05)
    assert np.argmax(np.abs(np.fft.rfft(samples, 16000))) == pytest.approx(440, abs=1)


def test_a_flac_stream_without_a_length_is_read_to_its_end(tmp_path) -> None:
    content = io.BytesIO()
    soundfile.write(content, np.resize(np.float32(VALUES), 5000), 16000, format="FLAC", subtype="PCM_16")
    raw = bytearray(content.getvalue())
    # STREAMINFO follows "fLaC" and a 4-byte block header; its total sample count is 36 bits from bit 108.
    raw[8 + 13] &= 0xF0
    raw[8 + 14 : 8 + 18] = bytes(4)
    np.testing.assert_array_equal(read(tmp_path, bytes(raw), "in.flac"), np.resize(np.float32(VALUES), 5000))


# Channels and rates


def test_channels_are_mixed_by_their_mean(tmp_path) -> None:
    frames = struct.pack("<6h", 0, 16384, 8192, 8192, -32768, 32767)
    samples = read(tmp_path, riff(fmt(channels=2), chunk(b"data", frames)))
    np.testing.assert_array_equal(samples, np.float32([0.25, 0.25, -0.5 / 32768]))


def test_a_tone_on_the_right_channel_alone_is_heard(tmp_path) -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(4800) / 48000)
    path = tmp_path / "right.wav"
    soundfile.write(path, np.stack([0 * tone, tone], axis=1), 48000, subtype="FLOAT")
    assert np.sqrt(np.mean(read_audio(path) ** 2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.02)


@pytest.mark.parametrize("channels", [1, 2, 6])
@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100, 48000, 96000])
def test_a_second_stays_a_second_and_a_tone_keeps_its_pitch(tmp_path, rate, channels) -> None:
    tone = 0.25 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)
    path = tmp_path / "tone.wav"
    soundfile.write(path, np.repeat(tone[:, None], channels, axis=1), rate, subtype="FLOAT")
    samples = read_audio(path)
    assert samples.shape == (16000,)
    expected = 0.25 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    middle = slice(1600, -1600)  # the resampler's filter needs neighbours on both sides
    np.testing.assert_allclose(samples[middle], expected[middle], atol=1e-3)


def test_samples_at_16_khz_are_not_touched(tmp_path) -> None:
    noise = np.random.default_rng(0).uniform(-1, 1, 999).astype(np.float32)
    soundfile.write(tmp_path / "n.wav", noise, 16000, subtype="FLOAT")
    np.testing.assert_array_equal(read_audio(tmp_path / "n.wav"), noise)


@pytest.mark.parametrize("count", [1, 159, 160, 256, 257, 399, 400])
def test_short_files_are_read_whole(tmp_path, count) -> None:
    assert read(tmp_path, riff(fmt(), chunk(b"data", bytes(2 * count)))).shape == (count,)


def test_less_than_one_sample_after_resampling_is_refused(tmp_path) -> None:
    with pytest.raises(AudioError, match="holds 1 samples at 48000 Hz, less than one at 16000 Hz"):
        read(tmp_path, riff(fmt(rate=48000), chunk(b"data", bytes(2))))


@pytest.mark.parametrize("rate", [0, 1, 999, 800_000, 4_000_000_000])
def test_absurd_sample_rates_are_refused(tmp_path, rate) -> None:
    with pytest.raises(AudioError):
        read(tmp_path, riff(chunk(b"fmt ", struct.pack("<HHIIHH", 1, 1, rate, 0, 2, 16)), chunk(b"data", STEP_BYTES)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_samples_are_refused_with_the_index_of_the_first(tmp_path, bad) -> None:
    frames = np.zeros((10, 2), "<f4")
    frames[7, 1] = frames[9, 0] = bad
    with pytest.raises(AudioError, match=r"in\.wav: sample 7 is -?(nan|inf)"):
        read(tmp_path, riff(fmt(FLOAT, 32, channels=2), chunk(b"data", frames.tobytes())))
    with pytest.raises(AudioError, match="audio: sample 7 is"):
        check_samples(frames[:, 1])


def test_a_float64_value_beyond_float32_is_refused(tmp_path) -> None:
    with pytest.raises(AudioError, match="sample 1 is inf"):
        read(tmp_path, riff(fmt(FLOAT, 64), chunk(b"data", struct.pack("<2d", 0.0, 1e300))))


# Places


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"These are words, not sound.\n" * 20, "cannot be decoded"), (b"RIFF", "cannot be decoded")],
)
def test_files_that_are_not_sound_are_refused(tmp_path, content, message) -> None:
    with pytest.raises(AudioError, match=message):
        read(tmp_path, content)


def test_folders_devices_and_missing_files_are_refused(tmp_path) -> None:
    for place, message in [
        (tmp_path, "is a folder"),
        (os.devnull, "is a device"),
        (tmp_path / "none.wav", "does not exist"),
        (Path(__file__) / "below.wav", "does not exist"),
        ("a\0b.wav", "cannot be read"),
        ("x" * 5000, "cannot be read"),
    ]:
        with pytest.raises(AudioError, match=message):
            read_audio(place)


def test_a_file_without_read_permission_is_refused(tmp_path, monkeypatch) -> None:
    path = tmp_path / "secret.wav"
    path.write_bytes(riff(fmt(), chunk(b"data", STEP_BYTES)))
    path.chmod(0)
    if os.access(path, os.R_OK):  # the administrator may read everything

        def refuse(_: Path) -> bytes:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(AudioError, match="may not be read"):
        read_audio(path)


def test_a_pipe_can_be_read(tmp_path) -> None:
    import threading

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    content = riff(fmt(), chunk(b"data", STEP_BYTES, 0xFFFFFFFF), size=0xFFFFFFFF)
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    np.testing.assert_array_equal(read_audio(pipe), np.float32(VALUES))
    writer.join()
