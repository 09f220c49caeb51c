"""The per-frame loop: what returns into it, and when. Seen from outside, through sessions and traces."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.models import SHALLOW, Float32, build, shallow, speech, tiny
from tests.talks import Talk, talk
from voicechat_mlx.conventions import MLX
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.nn.cache import arrays_of
from voicechat_mlx.talker.ear_tts import EarTts
from voicechat_mlx.trace import trace

PAD, EOS = 12, 2
PROMPT = "Be concise."
PCM = speech(1.0)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[int]]]:
    """What the talker is told at each step: (text id, previous codes)."""
    told: list[tuple[int, list[int]]] = []
    inner = EarTts.advance

    def advance(self: EarTts, text: mx.array, previous: mx.array, *args: Any, **options: Any) -> mx.array:
        told.append((text.item(), previous.reshape(-1).tolist()))
        return inner(self, text, previous, *args, **options)

    monkeypatch.setattr(EarTts, "advance", advance)
    return told


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The codes of each talker step as generated."""
    made: list[list[int]] = []
    inner = EarTts.generate_codes

    def generate_codes(self: EarTts, *args: Any) -> mx.array:
        codes = inner(self, *args)
        made.append(codes.tolist())
        return codes

    monkeypatch.setattr(EarTts, "generate_codes", generate_codes)
    return made


def silence(model: VoiceChat) -> list[int]:
    return model.codec_silence_tokens.tolist()


def masked(model: VoiceChat) -> list[int]:
    return [model.talker.mask_code] * 31


def one_frame(model: VoiceChat, **options: Any) -> Talk:
    return talk(model, PCM[:100], **options)


def test_position_0_runs_no_talker_step_and_sounds_silence(heard: list) -> None:
    found = one_frame(shallow())
    assert found.codes.tolist() == [silence(shallow())]
    assert heard == []


def test_position_0_sounds_zeros_by_the_other_convention(heard: list) -> None:
    assert one_frame(shallow(), conventions="nemo").codes.tolist() == [[0] * 31]
    assert heard == []


def test_each_later_position_tells_the_talker_its_own_text_and_the_codes_before_it(
    heard: list, generated: list
) -> None:
    """Position 1 hears the last codes of the voice prompt, all masked: position 0 left nothing behind."""
    model = tiny()
    found = talk(model, PCM)
    assert [text for text, _ in heard] == found.text_ids[1:]
    before = [masked(model), *generated[:-1]]
    expected = [silence(model) if text == EOS else codes for (text, _), codes in zip(heard, before, strict=True)]
    assert [codes for _, codes in heard] == expected
    assert found.text_ids.count(EOS) < len(found.text_ids) - 4


def test_eos_replaces_the_codes_before_it_by_silence(heard: list, generated: list) -> None:
    model = build(SHALLOW, extra={"inference_eos_boost": 1e4})
    found = talk(model, PCM)
    assert set(found.text_ids) == {EOS}
    assert heard == [(EOS, silence(model))] * (len(found.text_ids) - 1)
    assert silence(model) not in generated


def test_control_codes_are_replaced_for_the_ear_but_fed_back_as_generated(heard: list, generated: list) -> None:
    """The tiny model's control codes are ordinary ones, so some occur in every frame or two."""
    model = tiny()
    found = talk(model, PCM)
    control = np.isin(generated, [3, 11, 17])
    assert control.any()
    np.testing.assert_array_equal(found.codes[1:], np.where(control, silence(model), generated))
    fed_back = [codes for (text, _), codes in zip(heard[1:], generated[:-1], strict=True) if text != EOS]
    assert fed_back == [codes for text, codes in heard[1:] if text != EOS]
    assert np.isin(fed_back, [3, 11, 17]).any()


@pytest.mark.parametrize("prompt", ["", PROMPT])
def test_each_position_fuses_its_audio_with_the_ids_before_it(prompt: str) -> None:
    """Prompt ids enter on the audio channel, while text and function stay PAD."""
    model = tiny()
    found = trace(model, PCM, prompt, 0.0)
    ids = model.tokenizer.prompt_ids(prompt, bos=1, eos=2)
    rows = np.asarray(model.embed_tokens.weight, np.float64)
    audio = np.concatenate([rows[ids], found["perception.projected"][0]])
    quiet = [PAD] * (len(ids) + 1 if ids else 1)
    text = [*quiet, *found["text.ids"][:-1]]
    function = [*quiet, *found["function.ids"][:-1]]
    np.testing.assert_allclose(found["llm.fused"][0], rows[text] + audio + 2 * rows[function], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("prompt", ["", PROMPT])
def test_ids_are_the_argmax_over_the_whole_history_at_once(prompt: str) -> None:
    """One call of the language model over all positions, without any cache from before."""
    model = tiny()
    found = trace(model, PCM, prompt, 0.0)
    frames = len(found["text.ids"])
    hidden = model.llm(mx.array(found["llm.fused"]))[0, -frames:]
    assert model.lm_head(hidden).argmax(axis=-1).tolist() == found["text.ids"].tolist()
    assert model.function_head(hidden).argmax(axis=-1).tolist() == found["function.ids"].tolist()
    assert len(set(found["text.ids"].tolist())) > 3


def test_the_talker_speaks_over_the_prompt_from_position_1_on(heard: list) -> None:
    model = tiny()
    found = talk(model, PCM, system_prompt=PROMPT)
    prompt = len(model.tokenizer.prompt_ids(PROMPT, bos=1, eos=2))
    assert [text for text, _ in heard] == [PAD] * (prompt - 1) + found.text_ids
    assert heard[0][1] == masked(model)
    assert masked(model) not in [codes for _, codes in heard[1:]]


def test_a_talk_starts_from_its_own_copy_of_the_voice_prompt() -> None:
    model = shallow()
    prompt = model.voice_prompt(MLX)
    before = [np.asarray(array).copy() for array in arrays_of(prompt.cache)]
    talk(model, PCM, system_prompt=PROMPT)
    assert {cache.position for cache in prompt.cache.layers} == {5}
    for old, new in zip(before, arrays_of(prompt.cache), strict=True):
        np.testing.assert_array_equal(old, new)


# Boosts of the text logits


def first_text_logits(model: VoiceChat, pcm: Float32) -> np.ndarray:
    """(V,) of frame 0."""
    return trace(model, pcm, "", 0.0)["llm.text_logits"][0, 0]


def signal_not_answered_with(model: VoiceChat, id: int) -> Float32:
    """One frame of something that does not make the model begin with that id."""
    signals = (speech(0.006, seed=seed) for seed in range(50))
    return next(pcm for pcm in signals if first_text_logits(model, pcm).argmax() != id)


@pytest.mark.parametrize(("boost", "id"), [("pad", 12), ("bos", 1), ("eos", 2)])
def test_a_boost_is_added_to_its_text_logit_and_to_no_function_logit(boost: str, id: int) -> None:
    plain, boosted = shallow(), build(SHALLOW, extra={f"inference_{boost}_boost": 1e4})
    pcm = signal_not_answered_with(plain, id)
    assert talk(plain, pcm).text_ids[0] != id
    assert talk(boosted, pcm).text_ids[0] == id
    assert talk(boosted, pcm).function_ids[0] == talk(plain, pcm).function_ids[0]


@pytest.mark.parametrize(("factor", "wins"), [(0.999, False), (1.001, True)])
def test_a_boost_weighs_exactly_its_value(factor: float, wins: bool) -> None:
    """Just below the gap between EOS and the winner nothing changes, just above EOS wins."""
    pcm = signal_not_answered_with(shallow(), EOS)
    logits = first_text_logits(shallow(), pcm)
    boosted = build(SHALLOW, extra={"inference_eos_boost": float(logits.max() - logits[EOS]) * factor})
    assert (talk(boosted, pcm).text_ids[0] == EOS) is wins
