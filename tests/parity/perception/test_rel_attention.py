from __future__ import annotations

import pytest
import torch

from tests.parity.agreement import assert_agreement
from tests.parity.comparisons.perception import compare_parts
from tests.parity.pair import Checkpoints, Pair
from tests.parity.whole_loop import SPOKEN, twin_loop


def test_relative_attention_over_more_frames_than_its_window_agrees(pair: Pair) -> None:
    assert_agreement(compare_parts(pair, "self_attn", twin_loop(pair, SPOKEN)["encoder.pre_encode"]))


@pytest.mark.parametrize("left_context", [0, 1, 70])
@pytest.mark.parametrize("frames", [1, 2, 30])
def test_relative_attention_agrees_for_other_windows(checkpoints: Checkpoints, left_context: int, frames: int) -> None:
    pair = checkpoints.pair(overrides={"audio_config": {"encoder": {"att_context_size": [left_context, 0]}}})
    width = pair.twin.config.audio_config.encoder.d_model
    x = torch.randn(1, frames, width, generator=torch.Generator().manual_seed(frames))
    assert_agreement(compare_parts(pair, "self_attn", x))
