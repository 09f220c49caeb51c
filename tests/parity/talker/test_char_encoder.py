from __future__ import annotations

import mlx.core as mx
import torch

from reference.talker.char_encoder import BosEosEmbedding
from tests.parity.agreement import assert_agreement
from tests.parity.comparisons.talker import subword_blocks
from tests.parity.pair import Pair, to_mlx
from tests.parity.tolerances import FLOAT32
from voicechat_mlx.report.rows import compare, to_numpy
from voicechat_mlx.talker.char_encoder import FlagEmbedding


def test_every_id_known_and_unknown_spelled_and_masked_agrees(pair: Pair) -> None:
    assert_agreement(subword_blocks(pair))


def test_spelled_and_masked_ids_side_by_side_agree(fp32: Pair) -> None:
    ids = torch.arange(60).reshape(2, 30)
    mask = ids % 3 == 0
    ours = fp32.mlx.talker.embed_subword(to_mlx(ids), mx.array(mask.numpy()))
    assert_agreement([compare("embed_subword", ours, fp32.twin.talker.embed_subword(ids, mask), FLOAT32)])


def test_a_token_alone_is_encoded_as_among_longer_ones(fp32: Pair) -> None:
    ids = torch.arange(fp32.twin.config.text_config.vocab_size).unsqueeze(0)
    together = fp32.mlx.talker.embed_subword(to_mlx(ids))
    alone = mx.concatenate([fp32.mlx.talker.embed_subword(to_mlx(id)) for id in ids.T.unsqueeze(1)], axis=1)
    assert_agreement([compare("embed_subword", alone, to_numpy(together), FLOAT32)])


def test_ids_beyond_a_flag_table_are_read_at_its_padding_id_on_both_sides() -> None:
    table, embedding = torch.tensor([0, 2, 0, 1]), torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[0, 1, 2, 3, 4, 1000, -1]])
    theirs = BosEosEmbedding(len(table), 5)
    assert int(theirs.pad_tensor) == 3
    theirs.special_flags.copy_(table)
    theirs.special_emb.weight.data.copy_(embedding)
    ours = FlagEmbedding("special_flags", "special_emb", 3, 5)
    ours.pad_tensor, ours["special_flags"], ours["special_emb"].weight = mx.array(3), to_mlx(table), to_mlx(embedding)
    by_hand = embedding[[0, 2, 0, 1, 1, 1, 1]][None]
    assert_agreement([compare("twin", theirs(ids), by_hand, 0.0), compare("mlx", ours(to_mlx(ids)), by_hand, 0.0)])
