"""Whole conversations: with and without a prompt, both conventions, every checkpoint variant, drawn numbers shared."""

from __future__ import annotations

import numpy as np
import pytest

import voicechat_mlx
from tests.parity.agreement import assert_agreement
from tests.parity.pair import Checkpoints, Pair
from tests.parity.tolerances import FLOAT32
from tests.parity.whole_loop import PROMPT, SCENARIOS, SPOKEN, Run, Scenario, compare_loops, question, twin_loop
from voicechat_mlx.report.rows import compare, compare_ids


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_every_activation_of_a_conversation_agrees(checkpoints: Checkpoints, scenario: Scenario) -> None:
    pair = checkpoints.pair(scenario.variant, scenario.overrides)
    assert_agreement(compare_loops(pair, scenario.run, scenario.encoded_tolerance))


@pytest.mark.parametrize("conventions", ["mlx", "nemo"])
@pytest.mark.parametrize("samples", [160, 1279, 1280, 2719, 2720])
def test_the_shortest_conversations_agree(fp32: Pair, conventions: str, samples: int) -> None:
    assert_agreement(compare_loops(fp32, Run(conventions=conventions, samples=samples, extra_seconds=0.0)))


def test_a_single_sample_agrees(fp32: Pair) -> None:
    assert_agreement(compare_loops(fp32, Run(samples=1, extra_seconds=0.0)))


def test_boosts_of_the_text_logits_agree(checkpoints: Checkpoints) -> None:
    boosts = {"inference_pad_boost": 1.5, "inference_bos_boost": 0.7, "inference_eos_boost": 1.0}
    pair = checkpoints.pair(overrides=boosts)
    run = Run(samples=12800, extra_seconds=0.0)
    plain, boosted = (twin_loop(side, run)["text.ids"].tolist() for side in (checkpoints.pair(), pair))
    assert plain != boosted
    assert_agreement(compare_loops(pair, run))


def test_an_ordinary_answer_is_what_the_recorded_one_is(fp32: Pair) -> None:
    result = voicechat_mlx.generate(fp32.mlx, question(SPOKEN), PROMPT, SPOKEN.extra_seconds, SPOKEN.seed)
    loop = twin_loop(fp32, SPOKEN)
    rows = [
        compare_ids("text", result.text_tokens, loop["text.ids"]),
        compare_ids("function", result.function_tokens, loop["function.ids"]),
        compare_ids("codes", result.audio_codes, loop["tts.codes"]),
        compare("audio", result.audio, loop["codec.audio"], FLOAT32),
    ]
    assert_agreement(rows)


def test_the_compared_conversations_are_lively_enough_to_mean_something(checkpoints: Checkpoints) -> None:
    loops = [twin_loop(checkpoints.pair(scenario.variant, scenario.overrides), scenario.run) for scenario in SCENARIOS]
    config = checkpoints.pair().twin.config
    text = np.concatenate([loop["text.ids"] for loop in loops])
    codes = np.concatenate([loop["tts.step_codes"] for loop in loops])
    assert len(set(text.tolist())) > 20
    assert len(set(np.concatenate([loop["function.ids"] for loop in loops]).tolist())) > 5
    assert config.eos_token_id in text, "the talker must be made to forget its last codes"
    assert np.isin(codes, checkpoints.pair().twin.control_codes).any(), "control codes must be there to be replaced"
    assert all(len(loop["rnnt.ids"]) > 0 for loop in loops)
    assert any(len(set(loop["rnnt.frames"].tolist())) < len(loop["text.ids"]) for loop in loops), "blank frames too"
    assert all(len(loop["text.ids"]) > config.tts_config.sliding_window for loop in loops)
    assert all(len(loop["text.ids"]) > config.audio_config.encoder.left_context for loop in loops)
