from __future__ import annotations

import pytest
import torch

from tests.parity.agreement import assert_agreement
from tests.parity.comparisons.codec import decoder_blocks, encoder_blocks, some_speech
from tests.parity.pair import Pair, to_mlx
from tests.parity.whole_loop import SPOKEN, twin_loop
from voicechat_mlx.report.rows import compare_ids


def test_encoding_speech_agrees_layer_by_layer(pair: Pair) -> None:
    assert_agreement(encoder_blocks(pair, some_speech(pair, twin_loop(pair, SPOKEN))))


def test_decoding_the_same_codes_agrees_layer_by_layer_and_to_80_db(pair: Pair) -> None:
    rows = list(decoder_blocks(pair, twin_loop(pair, SPOKEN)["tts.codes"][None].long()))
    assert [row.unit for row in rows].count("dB") == 1
    assert_agreement(rows)


@pytest.mark.parametrize("frames", [1, 2, 38])
def test_silence_encodes_to_the_same_codes(fp32: Pair, frames: int) -> None:
    silence = torch.zeros(1, 1764 * frames)
    assert_agreement([compare_ids("codes", fp32.mlx.codec.encode(to_mlx(silence)), fp32.twin.codec.encode(silence))])


@pytest.mark.parametrize("frames", [1, 2])
def test_the_shortest_signals_decode_alike_to_their_last_sample(fp32: Pair, frames: int) -> None:
    generator = torch.Generator().manual_seed(frames)
    codes = torch.randint(fp32.twin.config.codec_config.codebook_size, (1, frames, 31), generator=generator)
    assert_agreement(decoder_blocks(fp32, codes))
