from __future__ import annotations

import pytest

from tests.parity.agreement import assert_agreement
from tests.parity.comparisons.llm import layers_of_kind, random_positions
from tests.parity.comparisons.stack import compare_layers
from tests.parity.pair import Checkpoints, Pair
from tests.parity.whole_loop import SPOKEN, twin_loop


def test_every_mamba_layer_agrees_at_once_and_step_by_step(pair: Pair) -> None:
    assert_agreement(compare_layers(layers_of_kind(pair, "M"), twin_loop(pair, SPOKEN)["llm.fused"]))


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 150])
def test_the_closed_form_over_chunks_agrees_for_any_length(fp32: Pair, count: int) -> None:
    assert_agreement(compare_layers(layers_of_kind(fp32, "M"), random_positions(fp32, count)))


@pytest.mark.parametrize("size", [3, 64, 70])
def test_the_state_carried_from_piece_to_piece_agrees(fp32: Pair, size: int) -> None:
    assert_agreement(compare_layers(layers_of_kind(fp32, "M", size), random_positions(fp32, 150)))


def test_limits_on_the_time_step_agree(checkpoints: Checkpoints) -> None:
    pair = checkpoints.pair(overrides={"text_config": {"time_step_limit": [0.2, 0.5]}})
    assert_agreement(compare_layers(layers_of_kind(pair, "M"), random_positions(pair, 80)))
