from __future__ import annotations

import mlx.core as mx
import pytest

from tests.parity.agreement import assert_agreement
from tests.parity.comparisons.llm import heads, layers_of_kind, llm_blocks, random_positions
from tests.parity.comparisons.stack import Layer, compare_layers
from tests.parity.pair import Pair
from tests.parity.whole_loop import SPOKEN, twin_loop


def test_every_mlp_layer_agrees(pair: Pair) -> None:
    assert_agreement(compare_layers(layers_of_kind(pair, "-"), twin_loop(pair, SPOKEN)["llm.fused"]))


def test_each_layer_agrees_on_the_output_of_the_layer_below(pair: Pair) -> None:
    assert_agreement(llm_blocks(pair))


@pytest.mark.parametrize("size", [90, 7, 1])
def test_the_hidden_states_of_all_layers_together_agree_however_the_positions_come(fp32: Pair, size: int) -> None:
    llm = fp32.mlx.llm

    def in_pushes(x: mx.array) -> mx.array:
        cache = llm.make_cache(1, fp32.language_dtype)
        return mx.concatenate([llm(x[:, begin : begin + size], cache) for begin in range(0, 90, size)], axis=1)

    whole = Layer(name="llm.hidden", mlx=in_pushes, twin=fp32.twin.llm)
    assert_agreement(compare_layers([whole], random_positions(fp32, 90)))


@pytest.mark.parametrize("place", [0, 1])
def test_both_heads_agree(pair: Pair, place: int) -> None:
    assert_agreement(compare_layers([heads(pair)[place]], twin_loop(pair, SPOKEN)["llm.hidden"]))
