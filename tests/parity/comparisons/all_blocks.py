"""Every block of every network in the order of the data flow: the same input to both sides, so no error adds up."""

from __future__ import annotations

from collections.abc import Iterator

from tests.parity.comparisons.codec import codec_blocks
from tests.parity.comparisons.llm import llm_blocks
from tests.parity.comparisons.perception import perception_blocks
from tests.parity.comparisons.talker import talker_blocks
from tests.parity.pair import Pair
from voicechat_mlx.report.rows import Row


def compare_blocks(pair: Pair) -> Iterator[Row]:
    """Some ninety rows."""
    for network in (perception_blocks, llm_blocks, talker_blocks, codec_blocks):
        yield from network(pair)
