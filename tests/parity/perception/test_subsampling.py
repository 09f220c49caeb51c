from __future__ import annotations

import pytest
import torch

from tests.parity.agreement import assert_agreement
from tests.parity.comparisons.perception import subsampling
from tests.parity.comparisons.stack import compare_layers
from tests.parity.pair import Pair
from tests.parity.whole_loop import SPOKEN, twin_loop


def test_the_subsampling_of_speech_agrees(pair: Pair) -> None:
    assert_agreement(compare_layers([subsampling(pair)], twin_loop(pair, SPOKEN)["mel"]))


@pytest.mark.parametrize("rows", range(1, 19))
def test_the_subsampling_agrees_for_any_number_of_rows(fp32: Pair, rows: int) -> None:
    mel = torch.randn(1, rows, 128, generator=torch.Generator().manual_seed(rows)) - 8
    assert_agreement(compare_layers([subsampling(fp32)], mel))
