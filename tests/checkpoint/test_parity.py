"""MLX against the PyTorch twin on trained weights: the activations here are those of a model that does its work."""

from __future__ import annotations

import numpy as np
import pytest

import voicechat_mlx
from tests.parity.agreement import assert_agreement
from tests.parity.comparisons.all_blocks import compare_blocks
from tests.parity.comparisons.bfloat16 import compare_bfloat16
from tests.parity.pair import Pair, load_pair
from tests.parity.whole_loop import PROMPT, SPOKEN, Run, compare_loops, question, twin_loop
from voicechat_mlx.checkpoint import BUNDLED

WHOLE = Run(extra_seconds=2.2)
"""Long enough for the whole answer."""


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair(BUNDLED)


def test_every_block_agrees(pair: Pair) -> None:
    assert_agreement(compare_blocks(pair))


@pytest.mark.parametrize("run", [WHOLE, SPOKEN], ids=["a whole answer", "with a system prompt"])
def test_every_activation_of_a_conversation_agrees(pair: Pair, run: Run) -> None:
    assert_agreement(compare_loops(pair, run))


def test_the_compared_conversation_is_a_real_one(pair: Pair) -> None:
    config, loop = pair.twin.config, twin_loop(pair, WHOLE)
    text = loop["text.ids"].tolist()
    assert text.count(config.bos_token_id) == text.count(config.eos_token_id) == 1
    assert len(set(np.unique(loop["tts.codes"]).tolist())) > 100, "speech uses many codes"


def test_the_last_layers_of_a_run_in_bfloat16_stay_within_tolerance(pair: Pair) -> None:
    assert_agreement(compare_bfloat16(pair))


def test_a_run_in_bfloat16_hears_and_says_what_the_twin_does_in_float32(pair: Pair) -> None:
    rounded = voicechat_mlx.load(dtype="bfloat16")
    for run in (WHOLE, SPOKEN):
        result = voicechat_mlx.generate(rounded, question(run), run.prompt, run.extra_seconds)
        loop = twin_loop(pair, run)
        np.testing.assert_array_equal(result.text_tokens, loop["text.ids"])
        np.testing.assert_array_equal(result.function_tokens, loop["function.ids"])
        np.testing.assert_array_equal(result.transcript_tokens, loop["rnnt.ids"])


def test_the_prompt_of_the_compared_run_is_one_that_the_model_obeys(pair: Pair) -> None:
    result = voicechat_mlx.generate(pair.mlx, question(SPOKEN), PROMPT)
    assert result.text == "It is Paris."
