"""Each choice on which ports and publisher differ, both ways, with exactly the effect that is stated for it."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from tests.models import SHALLOW, Float32, build, shallow, speech, tiny
from tests.talks import Talk, talk
from voicechat_mlx.audio.mel import MelStream
from voicechat_mlx.conventions import MLX, NEMO, PROFILES, Conventions, find_conventions
from voicechat_mlx.errors import ConfigError
from voicechat_mlx.trace import trace


def mel(pcm: Float32, conventions: Conventions) -> Float32:
    stream = MelStream(tiny().mel_filterbank, conventions)
    return np.concatenate([stream.push(pcm), stream.finish()])


def ids(found: Talk) -> list[list[int]]:
    return [found.text_ids, found.function_ids]


def with_choice(name: str) -> Conventions:
    """The `mlx` profile with one choice of `nemo`."""
    return replace(MLX, name=f"mlx with {name}", **{name: getattr(NEMO, name)})


def test_the_two_profiles_differ_in_every_choice() -> None:
    choices = [field.name for field in fields(Conventions) if field.name != "name"]
    assert choices == ["stft_padding", "keeps_last_mel_frame", "warmup_ends_with_eos", "silent_first_frame"]
    assert all(getattr(MLX, name) != getattr(NEMO, name) for name in choices)
    assert {"mlx": MLX, "nemo": NEMO} == PROFILES


def test_profiles_are_found_by_name_and_taken_as_they_are() -> None:
    assert find_conventions("mlx") is MLX
    assert find_conventions("nemo") is NEMO
    assert find_conventions(with_choice("stft_padding")).stft_padding == "constant"
    with pytest.raises(ConfigError, match="choose one of mlx, nemo"):
        find_conventions("torch")


@pytest.mark.parametrize("samples", [3200, 3279, 3280, 3359])
def test_padding_touches_the_first_two_rows_and_at_most_the_last_two(samples: int) -> None:
    """Row t reaches 200 samples to each side of 160 t: rows 0 and 1 reach before the start."""
    pcm = speech(0.3)[:samples]
    differ = np.flatnonzero((mel(pcm, MLX) != mel(pcm, NEMO)).any(axis=1)).tolist()
    rows = 1 + samples // 160
    past_the_end = [row for row in range(rows) if 160 * row + 198 >= samples]
    assert differ == [0, 1, *past_the_end]
    assert len(past_the_end) <= 2


def test_a_dropped_last_row_is_zero_in_the_trace() -> None:
    pcm = speech(0.3)
    kept, dropped = (trace(tiny(), pcm, "", 0.0, conventions=chosen)["mel"] for chosen in (MLX, NEMO))
    assert kept.shape == dropped.shape == (1, 31, 128)
    assert not dropped[0, -1].any()
    assert kept[0, -1].all()


@pytest.mark.parametrize("samples", range(1120, 1120 + 1280 + 1, 160))
def test_dropping_the_last_row_keeps_the_timeline_but_shortens_the_transcript(samples: int) -> None:
    """T = 1 + n // 160 rows give (T - 2) // 8 + 2 frames; the transcript hears (n // 160 - 2) // 8 + 2 of them."""
    model = build(SHALLOW)
    model.rnnt_joint.joint_net[2].bias[-1] = -1e4  # never blank: each heard frame emits
    pcm = speech(0.3)[:samples]
    kept, dropped = (talk(model, pcm, conventions=chosen) for chosen in (MLX, with_choice("keeps_last_mel_frame")))
    valid = samples // 160
    assert len(kept.text_ids) == len(dropped.text_ids) == (valid - 1) // 8 + 2
    assert {frame for frame, _ in kept.pieces} == set(range((valid - 1) // 8 + 2))
    assert {frame for frame, _ in dropped.pieces} == set(range((valid - 2) // 8 + 2))


def test_dropping_the_last_row_changes_no_encoder_frame_but_the_last() -> None:
    pcm = speech(0.5)
    kept, dropped = (
        trace(tiny(), pcm, "", 0.0, conventions=chosen)["perception.encoded"][0]
        for chosen in (MLX, with_choice("keeps_last_mel_frame"))
    )
    differ = np.flatnonzero(np.abs(kept - dropped).max(axis=1) > 1e-4)
    assert set(differ) <= {len(kept) - 1}


def test_the_last_warmup_subword_changes_the_voice_but_not_the_words() -> None:
    """Text and function ids never hear the talker."""
    pcm = speech(1.0)
    pad, eos = (talk(tiny(), pcm, conventions=chosen) for chosen in (MLX, with_choice("warmup_ends_with_eos")))
    assert ids(pad) == ids(eos)
    assert pad.pieces == eos.pieces
    np.testing.assert_array_equal(pad.codes[0], eos.codes[0])
    assert (pad.codes[1:] != eos.codes[1:]).any()


def test_the_codes_at_position_0_change_the_first_80_ms_only() -> None:
    model, pcm = shallow(), speech(1.0)
    silent, zeros = (talk(model, pcm, conventions=chosen) for chosen in (MLX, with_choice("silent_first_frame")))
    assert silent.codes[0].tolist() == model.codec_silence_tokens.tolist()
    assert not zeros.codes[0].any()
    np.testing.assert_array_equal(silent.codes[1:], zeros.codes[1:])
    assert ids(silent) == ids(zeros)


def test_with_a_system_prompt_position_0_lies_in_the_prompt_and_is_not_heard() -> None:
    pcm = speech(0.5)
    silent, zeros = (
        talk(shallow(), pcm, system_prompt="Hello.", conventions=chosen)
        for chosen in (MLX, with_choice("silent_first_frame"))
    )
    np.testing.assert_array_equal(silent.codes, zeros.codes)
    np.testing.assert_array_equal(silent.audio, zeros.audio)


@pytest.mark.parametrize("name", ["mlx", "nemo"])
@pytest.mark.parametrize("samples", [1, 159, 160, 320, 1440])
def test_both_profiles_answer_the_shortest_recordings_with_the_same_number_of_frames(name: str, samples: int) -> None:
    found = talk(shallow(), speech(0.2)[:samples], conventions=name)
    rows = 1 + samples // 160
    assert len(found.text_ids) == (1 if rows == 1 else (rows - 2) // 8 + 2)
    assert len(found.audio) == 1764 * len(found.text_ids)
    assert np.isfinite(found.audio).all()
