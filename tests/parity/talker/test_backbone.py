from __future__ import annotations

import pytest
import torch

from tests.parity.agreement import assert_agreement
from tests.parity.comparisons.stack import compare_layers
from tests.parity.comparisons.talker import backbone_layers, whole_talk
from tests.parity.pair import Pair
from tests.parity.whole_loop import SPOKEN, twin_loop


def test_each_layer_agrees_at_once_and_step_by_step(pair: Pair) -> None:
    assert_agreement(compare_layers(backbone_layers(pair), whole_talk(twin_loop(pair, SPOKEN))))


@pytest.mark.parametrize("size", [7, 16, 17, 37, 150])
def test_windows_and_rotation_agree_however_the_frames_come(fp32: Pair, size: int) -> None:
    assert_agreement(compare_layers(backbone_layers(fp32, size), random_frames(fp32, 150)))


@pytest.mark.parametrize("size", [None, 1])
def test_global_layers_agree_when_their_cache_has_to_grow(fp32: Pair, size: int | None) -> None:
    assert_agreement(compare_layers(backbone_layers(fp32, size), random_frames(fp32, 300)))


def random_frames(pair: Pair, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(2, count, pair.twin.config.tts_config.hidden_size, generator=generator)
