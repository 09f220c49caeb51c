from __future__ import annotations

import numpy as np
import pytest
import torch

from reference.perception import rnnt as reference_rnnt
from tests.parity.agreement import assert_agreement
from tests.parity.comparisons.perception import rnnt_blocks
from tests.parity.pair import Checkpoints, Pair
from tests.parity.whole_loop import SPOKEN, twin_loop
from voicechat_mlx import text


def test_prediction_logits_and_greedy_pieces_of_speech_agree(pair: Pair) -> None:
    assert_agreement(rnnt_blocks(pair, twin_loop(pair, SPOKEN)["perception.encoded"]))


@pytest.mark.parametrize("max_symbols", [1, 2, 10])
def test_greedy_pieces_agree_where_the_limit_of_pieces_a_frame_is_reached(
    checkpoints: Checkpoints, max_symbols: int
) -> None:
    pair = checkpoints.pair(overrides={"audio_config": {"max_symbols": max_symbols}})
    width = pair.twin.config.audio_config.encoder.d_model
    encoded = 5 * torch.randn(1, 50, width, generator=torch.Generator().manual_seed(2))
    ids, frames = reference_rnnt.greedy_decode(
        pair.twin.rnnt_decoder, pair.twin.rnnt_joint, encoded[0], pair.twin.config.audio_config
    )
    assert max(np.bincount(frames)) == max_symbols
    assert len(set(ids)) > 5
    assert_agreement(rnnt_blocks(pair, encoded))


def test_every_piece_reads_the_same(fp32: Pair) -> None:
    vocabulary = [*fp32.mlx.rnnt_vocabulary, "<EN-us>", "<hin-IN>", "▁▁", "a▁b"]
    for ids in ([id] for id in range(len(vocabulary))):
        assert text.decode_pieces(ids, vocabulary) == reference_rnnt.decode_pieces(ids, vocabulary)
    everything = list(range(len(vocabulary)))
    assert text.decode_pieces(everything, vocabulary) == reference_rnnt.decode_pieces(everything, vocabulary)
