"""VoiceChat itself: the fusion of the three streams, control codes, and the voice prompt."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from tests.models import SHALLOW, build, normal, shallow, tiny
from voicechat_mlx.conventions import MLX, NEMO
from voicechat_mlx.nn.cache import arrays_of


def test_fusing_adds_text_audio_and_twice_the_function() -> None:
    model = shallow()
    rows = np.asarray(model.embed_tokens.weight, np.float64)
    audio = normal(1, 3, rows.shape[1])
    fused = model.fuse(mx.array([[12, 5, 7]]), audio, mx.array([[12, 8, 12]]))
    expected = rows[[12, 5, 7]] + np.asarray(audio[0], np.float64) + 2.0 * rows[[12, 8, 12]]
    np.testing.assert_allclose(fused[0], expected, rtol=1e-5, atol=1e-5)


def test_the_weight_of_the_function_channel_comes_from_the_config() -> None:
    model = build({**SHALLOW, "function_channel_weight": 0.5})
    rows = np.asarray(model.embed_tokens.weight, np.float64)
    fused = model.fuse(mx.array([[3]]), mx.zeros((1, 1, rows.shape[1])), mx.array([[4]]))
    np.testing.assert_allclose(fused[0, 0], rows[3] + 0.5 * rows[4], rtol=1e-5, atol=1e-5)


def test_control_codes_become_the_silence_of_their_own_level() -> None:
    model = tiny()
    control, silence = model.control_codes.tolist(), model.codec_silence_tokens.tolist()
    assert control == [3, 11, 17]
    codes = [4] * 31
    codes[0], codes[9], codes[30], codes[12] = *control, 16
    expected = [4] * 31
    expected[0], expected[9], expected[30], expected[12] = silence[0], silence[9], silence[30], 16
    assert len({silence[0], silence[9], silence[30]}) == 3
    assert model.replace_control_codes(mx.array(codes)).tolist() == expected
    rows = mx.array([codes, [control[1]] * 31])
    assert model.replace_control_codes(rows).tolist() == [expected, silence]


def test_published_control_codes_lie_beyond_the_codebook_and_never_match() -> None:
    model = build(SHALLOW)
    model.control_codes = mx.array([29, 30, 31])
    codes = mx.array(np.arange(31) % 29)
    assert model.replace_control_codes(codes).tolist() == codes.tolist()


def test_the_voice_prompt_is_37_frames_of_silence_with_its_ends_masked() -> None:
    model = tiny()
    prompt = model.voice_prompt(MLX)
    assert model.config.voice_prompt_frames == 3 * 22050 // 1764 == 37
    codes = np.asarray(prompt.codes)
    assert codes.shape == (1, 37, 31)
    masked = (codes == model.talker.mask_code).all(axis=-1)[0]
    assert np.flatnonzero(masked).tolist() == [0, 36]
    silence = np.asarray(model.codec.encode(mx.zeros((1, 38 * 1764))))
    np.testing.assert_array_equal(codes[0, 1:36], silence[0, 1:36])
    assert prompt.last_codes.tolist() == [[[model.talker.mask_code] * 31]]


def test_the_voice_prompt_fills_every_cache_of_the_talker_once() -> None:
    model = tiny()
    prompt = model.voice_prompt(MLX)
    assert model.voice_prompt(MLX) is prompt
    assert [cache.position for cache in prompt.cache.layers] == [37] * 4
    assert [cache.offset.item() for cache in prompt.cache.layers] == [37] * 4


def test_the_last_warmup_subword_is_pad_or_eos_by_convention() -> None:
    """The two prompts differ in their last position only: in slot 36 of the global layer's keys and nowhere before."""
    model = tiny()
    pad, eos = (model.voice_prompt(chosen).cache.layers[2] for chosen in (MLX, NEMO))
    assert pad.window is None
    different = np.asarray(pad.keys[:, :, :37] != eos.keys[:, :, :37]).any(axis=(0, 1, 3))
    assert np.flatnonzero(different).tolist() == [36]


def test_only_the_conditioned_row_of_the_voice_prompt_hears_the_subwords() -> None:
    model = tiny()
    pad, eos = (model.voice_prompt(chosen).cache.layers[2].keys[:, :, 36] for chosen in (MLX, NEMO))
    assert np.asarray(pad[0] != eos[0]).any()
    np.testing.assert_array_equal(pad[1], eos[1])


def test_prompts_of_different_conventions_are_not_mixed_up() -> None:
    """A profile made from another one by `replace` keeps its name, but not its prompt."""
    model = build(SHALLOW)
    model.voice_prompt(MLX)
    changed = arrays_of(model.voice_prompt(replace(MLX, warmup_ends_with_eos=True)).cache)
    published = arrays_of(model.voice_prompt(NEMO).cache)
    for one, other in zip(changed, published, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("seconds", [0.1, 0.2, 3.0])
def test_the_voice_prompt_may_have_any_length(seconds: float) -> None:
    model = build({**SHALLOW, "tts_config": {**SHALLOW["tts_config"], "audio_prompt_duration": seconds}})
    frames = round(seconds * 22050) // 1764
    assert model.voice_prompt(MLX).codes.shape == (1, frames, 31)
