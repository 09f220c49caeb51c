"""`generate`: one session fed everything, then silence."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile

from tests.models import shallow, speech, tiny
from tests.talks import talk
from voicechat_mlx import AudioError, FunctionDelta, InputError, TextDelta, TranscriptDelta, generate
from voicechat_mlx.offline import expected_frames


@pytest.mark.parametrize("prompt", ["", "Be concise."])
def test_generate_is_a_session_fed_the_recording_and_then_silence(prompt: str) -> None:
    pcm = speech(1.3)
    result = generate(tiny(), pcm, prompt, extra_decoding_seconds=0.7, seed=3)
    silence = np.zeros(round(16000 * 0.7), np.float32)
    found = talk(tiny(), np.concatenate([pcm, silence]), system_prompt=prompt, seed=3)
    assert result.text_tokens.tolist() == found.text_ids
    assert result.function_tokens.tolist() == found.function_ids
    np.testing.assert_array_equal(result.audio_codes, found.codes)
    assert list(zip(result.transcript_frames, result.transcript_tokens, strict=True)) == found.pieces
    np.testing.assert_array_equal(result.audio, found.audio)
    assert result.text == found.joined(TextDelta)
    assert result.function_text == found.joined(FunctionDelta)
    assert result.user_transcript == found.joined(TranscriptDelta)


def test_three_seconds_of_silence_are_appended_unless_told_otherwise() -> None:
    assert generate(shallow(), speech(0.5), "").frames == expected_frames(shallow(), 3.5 * 16000)


@pytest.mark.parametrize(("seconds", "samples"), [(0.24, 3840), (0.05, 800), (0.0, 0), (0.00003, 0), (0.00004, 1)])
def test_appended_seconds_are_rounded_to_samples(seconds: float, samples: int) -> None:
    """`int(seconds / 0.08)` would make two frames of 0.24 s and none of 0.05 s."""
    pcm = speech(0.3)
    found = generate(shallow(), pcm, "", extra_decoding_seconds=seconds)
    assert found.frames == expected_frames(shallow(), len(pcm) + samples)
    rows = 1 + (len(pcm) + samples) // 160
    assert found.frames == (rows - 2) // 8 + 2


@pytest.mark.parametrize("seconds", [-0.1, float("nan"), float("inf")])
def test_impossible_durations_are_refused(seconds: float) -> None:
    with pytest.raises(InputError, match="seconds"):
        generate(shallow(), speech(0.1), "", extra_decoding_seconds=seconds)


@pytest.mark.parametrize("bad", [np.zeros(0, np.float32), np.zeros((2, 9), np.float32), np.array([np.nan])])
def test_arrays_that_are_no_recording_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(AudioError):
        generate(shallow(), bad, "", extra_decoding_seconds=1.0)


@pytest.mark.parametrize("samples", [1, 159, 160, 161, 319, 320, 1440, 1599, 16000])
def test_expected_frames_is_what_comes(samples: int) -> None:
    result = generate(shallow(), speech(1.0)[:samples], "", extra_decoding_seconds=0.0)
    assert result.frames == expected_frames(shallow(), samples)
    assert result.audio.shape == (result.frames * 1764,)
    assert result.sample_rate == 22050


def test_a_file_is_read_at_the_rate_of_the_model(tmp_path) -> None:
    pcm = np.round(speech(0.4) * 32768) / 32768
    soundfile.write(tmp_path / "in.wav", pcm, 16000, subtype="PCM_16")
    from_file = generate(shallow(), tmp_path / "in.wav", "", extra_decoding_seconds=0.0)
    from_array = generate(shallow(), pcm.astype(np.float32), "", extra_decoding_seconds=0.0)
    np.testing.assert_array_equal(from_file.audio_codes, from_array.audio_codes)
    np.testing.assert_array_equal(from_file.audio, from_array.audio)


def test_progress_rises_to_the_number_of_frames() -> None:
    calls: list[tuple[int, int]] = []
    result = generate(
        shallow(), speech(6.0), "", extra_decoding_seconds=0.0, progress=lambda done, total: calls.append((done, total))
    )
    done = [call[0] for call in calls]
    assert len(calls) >= 3
    assert done == sorted(done)
    assert calls[-1] == (result.frames, result.frames)
    assert {total for _, total in calls} == {result.frames}
