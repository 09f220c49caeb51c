from __future__ import annotations

import pytest
import torch

from reference.codec.convnext import ConvNeXtBlock
from tests.parity.agreement import assert_agreement
from tests.parity.comparisons.codec import channels_last
from tests.parity.comparisons.stack import compare_layers
from tests.parity.pair import Pair


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("steps", [1, 5, 6, 7, 50])
def test_every_block_agrees_for_signals_shorter_and_longer_than_its_kernel(fp32: Pair, side: str, steps: int) -> None:
    theirs = fp32.twin.codec.get_submodule(side).layers
    layers = channels_last(side, fp32.mlx.codec[side].layers, theirs)
    blocks = [(layer, block) for layer, block in zip(layers, theirs, strict=True) if isinstance(block, ConvNeXtBlock)]
    assert len(blocks) == 9
    for layer, block in blocks:
        x = torch.randn(2, steps, block.dwconv.in_channels, generator=torch.Generator().manual_seed(steps))
        assert_agreement(compare_layers([layer], x))
