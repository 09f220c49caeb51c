from __future__ import annotations

import pytest

from tests.parity.agreement import assert_agreement
from tests.parity.comparisons.llm import layers_of_kind, random_positions
from tests.parity.comparisons.stack import compare_layers
from tests.parity.pair import Pair
from tests.parity.whole_loop import SPOKEN, twin_loop


def test_every_attention_layer_agrees_at_once_and_step_by_step(pair: Pair) -> None:
    assert_agreement(compare_layers(layers_of_kind(pair, "*"), twin_loop(pair, SPOKEN)["llm.fused"]))


@pytest.mark.parametrize("size", [None, 100, 1])
def test_attention_agrees_when_its_cache_has_to_grow(fp32: Pair, size: int | None) -> None:
    assert_agreement(compare_layers(layers_of_kind(fp32, "*", size), random_positions(fp32, 300)))
