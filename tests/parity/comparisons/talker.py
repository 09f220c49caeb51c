"""Network 3 piece by piece: spelling, flags, code embedding, fusion, backbone layers, mixture head, codes."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import torch
from torch import Tensor

from tests.parity.comparisons.stack import Layer, compare_layers, in_pieces, with_mask
from tests.parity.pair import Pair, shared_draws, to_mlx
from tests.parity.tolerances import FLOAT32
from tests.parity.whole_loop import SPOKEN, twin_loop
from voicechat_mlx.report.rows import Row, compare, compare_ids
from voicechat_mlx.talker.ear_tts import Draws


def talker_blocks(pair: Pair) -> Iterator[Row]:
    """In the order of the data flow."""
    loop = twin_loop(pair, SPOKEN)
    yield from subword_blocks(pair)
    yield from code_blocks(pair, loop)
    yield from compare_layers(backbone_layers(pair), whole_talk(loop))
    yield from mixture_blocks(pair, loop)


def subword_blocks(pair: Pair) -> Iterator[Row]:
    """Every id of the vocabulary, then ids beyond every table; spelled, then masked."""
    ours, theirs = pair.mlx.talker.embed_subword, pair.twin.talker.embed_subword
    size = pair.twin.config.text_config.vocab_size
    groups = {"every id": torch.arange(size), "unknown ids": torch.tensor([-1, size, size + 1, size + 1000])}
    for name, ids in groups.items():
        for spelled in (True, False):
            mask = torch.full((1, len(ids)), spelled)
            row = f"talker.embed_subword, {name}" + ("" if spelled else ", masked")
            yield compare(row, ours(to_mlx(ids[None]), mx.array(mask.numpy())), theirs(ids[None], mask), FLOAT32)


def code_blocks(pair: Pair, loop: dict[str, Tensor]) -> Iterator[Row]:
    """Codes → embedding, codes not yet known among them; its fusion with the text; codes that the codec may hear."""
    codes = loop["tts.step_codes"].unsqueeze(0).long()
    replaced = pair.twin.replace_control_codes(codes)
    yield compare_ids("talker.control_codes", pair.mlx.replace_control_codes(to_mlx(codes)), replaced)
    codes[:, ::3, 5:] = pair.twin.talker.mask_id
    embedded = pair.twin.talker.embed_codes(codes)
    yield compare("talker.embed_codes", pair.mlx.talker.embed_codes(to_mlx(codes)), embedded, FLOAT32)
    cond = loop["tts.cond"]
    fused, _ = pair.twin.talker(embedded, cond)
    yield compare("talker.gated_fusion", pair.mlx.talker.fuse(to_mlx(embedded), to_mlx(cond)), fused, FLOAT32)


def whole_talk(loop: dict[str, Tensor]) -> Tensor:
    """(2, 37 + N - 1, h): the fused input of the voice prompt, then of the timeline."""
    return torch.cat([loop["tts.warmup_fused"], loop["tts.fused"]], dim=1)


def backbone_layers(pair: Pair, size: int | None = None) -> list[Layer]:
    """Whole layers and the final norm; MLX takes `size` frames at a time, None for all."""

    def layer(index: int) -> Layer:
        ours, theirs = (side.talker.backbone.layers[index] for side in (pair.mlx, pair.twin))

        def run(x: mx.array, size: int) -> mx.array:
            cache = pair.mlx.talker.backbone.make_cache(x.shape[0], pair.talker_dtype).layers[index]
            return in_pieces(with_mask(ours), cache, x, size)

        return Layer(
            name=f"talker.backbone.layers.{index}",
            mlx=lambda x: run(x, size or x.shape[1]),
            twin=theirs,
            stepwise=None if size else lambda x: run(x, 1),
        )

    ours, theirs = pair.mlx.talker.backbone, pair.twin.talker.backbone
    norm = Layer(name="talker.backbone.norm", mlx=ours.norm, twin=theirs.norm)
    return [*(layer(index) for index in range(len(ours.layers))), norm]


def mixture_blocks(pair: Pair, loop: dict[str, Tensor]) -> Iterator[Row]:
    """The head on every position's hidden rows with the first round's numbers, then all rounds down to the codes."""
    hidden, tts = loop["tts.hidden"], pair.twin.config.tts_config
    positions = hidden.shape[1]
    draws = map(shared_draws(pair.mlx, SPOKEN.seed), range(positions))
    gumbel, normal = (torch.stack(numbers) for numbers in zip(*draws, strict=True))
    mean, log_std = pair.twin.talker.mog_head.infer(
        hidden[0], hidden[1], gumbel[:, 0], guidance=tts.guidance_scale, top_p=tts.top_p
    )
    rows = [to_mlx(hidden[:, position]) for position in range(positions)]
    drawn = [Draws(to_mlx(gumbel[position]), to_mlx(normal[position])) for position in range(positions)]
    head = [pair.mlx.talker.mog_head(row, own.gumbel[0]) for row, own in zip(rows, drawn, strict=True)]
    yield compare("talker.mog_head mean", mx.stack([result[0] for result in head]), mean, FLOAT32)
    yield compare("talker.mog_head log std", mx.stack([result[1] for result in head]), log_std, FLOAT32)
    codes, _, _ = pair.twin.talker.generate_codes(
        hidden.flatten(0, 1), gumbel, normal, guidance=tts.guidance_scale, top_p=tts.top_p, noise_scale=tts.noise_scale
    )
    ours = [pair.mlx.talker.generate_codes(row, own) for row, own in zip(rows, drawn, strict=True)]
    yield compare_ids("talker.codes", mx.stack(ours), codes)
