from __future__ import annotations

import mlx.core as mx
import pytest
import torch

from reference.talker.mog_head import nucleus
from tests.parity.agreement import assert_agreement
from tests.parity.comparisons.talker import mixture_blocks
from tests.parity.pair import Checkpoints, Pair, to_mlx
from tests.parity.whole_loop import SPOKEN, twin_loop
from voicechat_mlx.report.rows import compare_ids
from voicechat_mlx.talker.mog_head import draw_from_nucleus


def test_means_deviations_and_codes_agree(pair: Pair) -> None:
    assert_agreement(mixture_blocks(pair, twin_loop(pair, SPOKEN)))


@pytest.mark.parametrize(
    "changes",
    [
        {"guidance_scale": 0.0},
        {"guidance_scale": 3.0},
        {"noise_scale": 0.0, "top_p": 1e-9},
        {"noise_scale": 2.0, "top_p": 1.0},
        {"mog_head": {"min_log_std": 0.3}},
    ],
    ids=["no guidance", "strong guidance", "no noise, tiny top-p", "loud noise, no top-p", "deviation at its floor"],
)
def test_other_settings_agree(checkpoints: Checkpoints, fp32: Pair, changes: dict[str, float]) -> None:
    pair = checkpoints.pair(overrides={"tts_config": changes})
    assert_agreement(mixture_blocks(pair, twin_loop(fp32, SPOKEN)))


@pytest.mark.parametrize("top_p", [1e-9, 0.1, 0.5, 0.95, 1.0])
def test_the_same_numbers_draw_the_same_component(top_p: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(300, 40, generator=generator)
    gumbel = -torch.log(-torch.log(torch.rand(300, 40, generator=generator)))
    theirs = (torch.log_softmax(nucleus(logits, top_p), dim=-1) + gumbel).argmax(-1)
    ours = [draw_from_nucleus(to_mlx(row), to_mlx(own), top_p) for row, own in zip(logits, gumbel, strict=True)]
    assert_agreement([compare_ids("component", mx.stack(ours), theirs)])
    assert top_p > 1e-6 or torch.equal(theirs, logits.argmax(-1))
