"""What bfloat16 activations cost, network by network, errors adding up from the bottom of each to its end."""

from __future__ import annotations

from collections.abc import Iterator

import voicechat_mlx
from tests.parity.comparisons.llm import heads, nemotron_layers
from tests.parity.comparisons.stack import compare_climbing
from tests.parity.comparisons.talker import backbone_layers, whole_talk
from tests.parity.pair import Pair
from tests.parity.tolerances import BFLOAT16_ARITHMETIC
from tests.parity.whole_loop import SPOKEN, mlx_loop, trace_names, twin_loop
from voicechat_mlx.report.rows import Row, compare


def compare_bfloat16(pair: Pair) -> Iterator[Row]:
    """Every layer of perception, language model and talker, the last ones judged. Codec and RNNT are float32 always.

    Perception runs as in any session. Language model and talker are fed the twin's input: their own ids would drift.
    """
    rounded = pair.with_mlx(voicechat_mlx.load(pair.folder, dtype="bfloat16"))
    yield from compare_hearing(rounded)
    loop = twin_loop(pair, SPOKEN)
    mind, mouth = nemotron_layers(rounded), backbone_layers(rounded)
    yield from compare_climbing(mind, heads(rounded), loop["llm.fused"], rounded.language_dtype, BFLOAT16_ARITHMETIC)
    yield from compare_climbing(mouth, [], whole_talk(loop), rounded.talker_dtype, BFLOAT16_ARITHMETIC)


def compare_hearing(pair: Pair) -> Iterator[Row]:
    """From the subsampling to the language model's door."""
    names = trace_names(len(pair.twin.perception.encoder.layers))
    first, last = names.index("encoder.pre_encode"), names.index("perception.projected")
    ours, theirs = mlx_loop(pair, SPOKEN), twin_loop(pair, SPOKEN)
    for name in names[first : last + 1]:
        judged = name in ("perception.encoded", "perception.projected")
        yield compare(name, ours[name], theirs[name], BFLOAT16_ARITHMETIC if judged else None)
