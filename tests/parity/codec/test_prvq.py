from __future__ import annotations

import pytest
import torch

from tests.parity.agreement import assert_agreement
from tests.parity.pair import Pair, to_mlx
from tests.parity.tolerances import FLOAT32
from voicechat_mlx.report.rows import compare, compare_ids


@pytest.mark.parametrize("size", [0.0, 0.1, 1.0, 10.0])
def test_latents_of_any_size_quantise_to_the_same_codes(fp32: Pair, size: float) -> None:
    width = fp32.twin.config.codec_config.latent_dim
    latents = size * torch.randn(1, 200, width, generator=torch.Generator().manual_seed(1))
    ours, theirs = fp32.mlx.codec.prvq, fp32.twin.codec.prvq
    assert_agreement([compare_ids("codes", ours.encode(to_mlx(latents)), theirs.encode(latents))])


def test_every_code_of_every_book_decodes_to_the_same_latent(pair: Pair) -> None:
    config = pair.twin.config.codec_config
    levels, size = torch.arange(config.num_quantizers), torch.arange(config.codebook_size)
    codes = ((size[:, None] + levels) % config.codebook_size).unsqueeze(0)
    ours, theirs = pair.mlx.codec.prvq, pair.twin.codec.prvq
    assert_agreement([compare("latents", ours.decode(to_mlx(codes)), theirs.decode(codes), FLOAT32)])
