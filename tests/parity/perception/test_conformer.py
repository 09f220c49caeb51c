from __future__ import annotations

import pytest
import torch

from tests.parity.agreement import assert_agreement
from tests.parity.comparisons.perception import CONFORMER_PARTS, compare_parts, conformer_layers, projection
from tests.parity.comparisons.stack import compare_layers
from tests.parity.pair import Pair, to_mlx
from tests.parity.tolerances import FLOAT32
from tests.parity.whole_loop import SPOKEN, twin_loop
from voicechat_mlx.report.rows import compare


@pytest.mark.parametrize("part", [part for part in CONFORMER_PARTS if part != "self_attn"])
def test_each_part_of_each_layer_agrees(pair: Pair, part: str) -> None:
    assert_agreement(compare_parts(pair, part, twin_loop(pair, SPOKEN)["encoder.pre_encode"]))


def test_each_layer_agrees_at_once_and_step_by_step(pair: Pair) -> None:
    assert_agreement(compare_layers(conformer_layers(pair), twin_loop(pair, SPOKEN)["encoder.pre_encode"]))


def test_the_projection_agrees(pair: Pair) -> None:
    assert_agreement(compare_layers([projection(pair)], twin_loop(pair, SPOKEN)["perception.encoded"]))


@pytest.mark.parametrize("rows", [1, 2, 9, 10, 65])
def test_a_last_frame_of_nothing_but_padding_agrees(fp32: Pair, rows: int) -> None:
    mel = torch.randn(1, rows + 1, 128, generator=torch.Generator().manual_seed(rows)) - 8
    mel[:, -1] = 0.0
    _, encoded, lengths = fp32.twin.perception(mel, torch.tensor([rows]))
    encoder = fp32.mlx.perception.encoder
    cache = encoder.make_cache(1, fp32.language_dtype)
    speech = encoder(to_mlx(mel[:, :rows]), cache, last=True)
    assert speech.shape[1] == int(lengths[0])
    assert_agreement([compare("speech", speech, encoded[:, : int(lengths[0])], FLOAT32)])
    if encoded.shape[1] > speech.shape[1]:
        assert_agreement([compare("padding", encoder.padding_frame(cache), encoded[:, -1:], FLOAT32)])
    else:
        assert (rows + 1) % 8 != 2
