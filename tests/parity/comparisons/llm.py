"""Network 2 piece by piece: the fused input, each layer with its kind, the final norm, both heads."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import torch
from torch import Tensor

from tests.parity.comparisons.stack import Layer, compare_layers, in_pieces, with_mask
from tests.parity.pair import Pair, to_mlx
from tests.parity.tolerances import FLOAT32
from tests.parity.whole_loop import SPOKEN, twin_loop
from voicechat_mlx.report.rows import Row, compare

KINDS = {"M": "Mamba-2", "*": "attention", "-": "MLP"}


def llm_blocks(pair: Pair) -> Iterator[Row]:
    """In the order of the data flow."""
    loop = twin_loop(pair, SPOKEN)
    text, function = (loop[name].unsqueeze(0) for name in ("text.ids", "function.ids"))
    audio = loop["perception.projected"]
    fused = pair.mlx.fuse(to_mlx(text), to_mlx(audio), to_mlx(function))
    yield compare("llm.fused", fused, pair.twin.fuse(text, audio, function), FLOAT32)
    yield from compare_layers(nemotron_layers(pair), loop["llm.fused"])
    for head in heads(pair):
        yield from compare_layers([head], loop["llm.hidden"])


def nemotron_layers(pair: Pair) -> list[Layer]:
    """Whole layers and the final norm."""
    pattern = pair.twin.config.text_config.hybrid_override_pattern
    norm = Layer(name="llm.norm_f", mlx=pair.mlx.llm.norm_f, twin=pair.twin.llm.norm_f)
    return [*(nemotron_layer(pair, index) for index in range(len(pattern))), norm]


def layers_of_kind(pair: Pair, letter: str, size: int | None = None) -> list[Layer]:
    """The layers with this letter in the pattern; see `nemotron_layer`."""
    pattern = pair.twin.config.text_config.hybrid_override_pattern
    return [nemotron_layer(pair, index, size) for index, own in enumerate(pattern) if own == letter]


def nemotron_layer(pair: Pair, index: int, size: int | None = None) -> Layer:
    """One layer; MLX takes `size` positions at a time, None for all. An MLP has no past, so nothing to step through."""
    letter, ours = pair.twin.config.text_config.hybrid_override_pattern[index], pair.mlx.llm.layers[index]

    def run(x: mx.array, size: int) -> mx.array:
        cache = pair.mlx.llm.make_cache(1, pair.language_dtype).layers[index]
        return in_pieces(with_mask(ours), cache, x, size)

    return Layer(
        name=f"llm.layers.{index} {KINDS[letter]}",
        mlx=lambda x: run(x, size or x.shape[1]),
        twin=pair.twin.llm.layers[index],
        stepwise=None if letter == "-" or size else lambda x: run(x, 1),
    )


def heads(pair: Pair) -> list[Layer]:
    """Hidden states → logits over the vocabulary."""
    return [
        Layer(name="llm.text_logits", mlx=pair.mlx.lm_head, twin=pair.twin.lm_head),
        Layer(name="llm.function_logits", mlx=pair.mlx.function_head, twin=pair.twin.function_head),
    ]


def random_positions(pair: Pair, count: int) -> Tensor:
    """(1, count, hidden), about as large as the fused input, for lengths that the recording does not have."""
    generator = torch.Generator().manual_seed(count)
    return 2 * torch.randn(1, count, pair.twin.config.text_config.hidden_size, generator=generator)
