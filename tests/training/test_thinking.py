from __future__ import annotations

import numpy as np
import torch

from reference.model import VoiceChat
from reference.offline import listen, think
from reference.training.features import SoundBank
from reference.training.thinking import Rows, Thinking, hear, in_four_bits, run_freely
from reference.training.timelines import Row
from reference.training.vocabularies import PAD
from voicechat_mlx.conventions import MLX

QUIET = (0.0, 1e-5, 1e-5)


def bank() -> SoundBank:
    random = np.random.default_rng(0)
    samples = (random.standard_normal(30000) * 3000).astype(np.int16)
    return SoundBank(samples, [0, 12000], [12000, 18000])


def a_row(frames: int, prompt: list[int]) -> Row:
    text, function = (np.full(frames, PAD, np.int16) for _ in range(2))
    return Row(prompt, text, function, np.zeros(frames, bool), clips=[(0, 700, 1.0), (1, 14000, 0.5)])


def test_rows_are_heard_as_the_whole_loop_hears_their_wave(model: VoiceChat) -> None:
    sounds = bank()
    heard = hear(model, sounds, [a_row(30, [])], QUIET)
    wave = torch.zeros(29 * 1280)
    wave[700:12700] += sounds.samples[:12000] / 32768
    wave[14000:32000] += 0.5 * sounds.samples[12000:] / 32768
    expected = listen(model, wave, MLX)["perception.encoded"]
    assert expected.shape[1] == 30
    torch.testing.assert_close(heard.encoded.float(), expected, rtol=2e-3, atol=2e-3)


def test_free_running_is_the_loop_of_the_twin(model: VoiceChat) -> None:
    """Labels that the model would not choose: it has to run on its own, prompt included."""
    prompt = [1, 300, 40, 2]
    heard = hear(model, bank(), [a_row(24, prompt)], QUIET)
    thinking = Thinking(model)
    text, function = run_freely(thinking, heard)
    projected = model.perception.proj(heard.encoded.float())[:, : 24 - len(prompt)]
    with torch.no_grad():
        traces = think(model, projected, torch.tensor([prompt]))
    assert len(set(traces["text.ids"].tolist())) > 1
    assert text[0, len(prompt) :].tolist() == traces["text.ids"].tolist()
    assert function[0, len(prompt) :].tolist() == traces["function.ids"].tolist()
    rows = Rows(**vars(heard) | {"text": text, "function": function})
    logits = thinking(rows, text, function)
    audible = slice(len(prompt), None)
    torch.testing.assert_close(logits[0][0, audible], traces["llm.text_logits"][0, audible], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits[1][0, audible], traces["llm.function_logits"][0, audible], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_only_what_a_converter_packs_is_rounded_to_four_bits(model: VoiceChat) -> None:
    packed = in_four_bits(Thinking(model))
    names = set(packed)
    assert {
        "embed_tokens.weight",
        "lm_head.weight",
        "function_head.weight",
        "llm.layers.0.mixer.in_proj.weight",
    } <= names
    assert not any("norm" in name or "conv1d" in name or name.startswith("proj") for name in names)
    weight = packed["lm_head.weight"]
    for row in weight[:5]:
        assert len(torch.unique((row * 1e4).round())) <= 16
    assert float((weight - model.lm_head.weight).abs().max()) < float(model.lm_head.weight.abs().max()) / 15
