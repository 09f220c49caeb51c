"""Network 1 piece by piece: log-mel, subsampling, conformer layers, projection, and the transcript branch."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reference.audio.mel import log_mel
from reference.perception.rel_attention import allowed_pairs
from reference.perception.rnnt import greedy_decode
from tests.parity.comparisons.stack import Layer, compare_layers, in_pieces
from tests.parity.pair import Pair, to_mlx
from tests.parity.tolerances import FLOAT32, MEL
from tests.parity.whole_loop import SPOKEN, question, twin_loop
from voicechat_mlx.audio.mel import MelStream
from voicechat_mlx.conventions import PROFILES
from voicechat_mlx.report.rows import Row, compare, compare_ids, to_numpy

CONFORMER_PARTS = {
    "feed_forward1": "norm_feed_forward1",
    "self_attn": "norm_self_att",
    "conv": "norm_conv",
    "feed_forward2": "norm_feed_forward2",
}
"""Part of a conformer layer → the norm in front of it."""


def perception_blocks(pair: Pair) -> Iterator[Row]:
    """In the order of the data flow."""
    for conventions in PROFILES:
        yield compare_mel(pair, question(SPOKEN), conventions)
    loop = twin_loop(pair, SPOKEN)
    yield from compare_layers([subsampling(pair)], loop["mel"])
    for part in CONFORMER_PARTS:
        yield from compare_parts(pair, part, loop["encoder.pre_encode"])
    yield from compare_layers([*conformer_layers(pair), projection(pair)], loop["encoder.pre_encode"])
    yield from rnnt_blocks(pair, loop["perception.encoded"])


def compare_mel(pair: Pair, samples: NDArray[np.float32], conventions: str) -> Row:
    """Samples → the rows that count as speech."""
    chosen = PROFILES[conventions]
    stream = MelStream(pair.mlx.mel_filterbank, chosen)
    ours = np.concatenate([stream.push(samples), stream.finish()])
    theirs, valid = log_mel(torch.from_numpy(samples), pair.twin.config.audio_config.preprocessor, chosen)
    name = "mel" if conventions == "mlx" else f"mel, {conventions}"
    return compare(name, ours if chosen.keeps_last_mel_frame else ours[:-1], theirs[0, :valid], MEL)


def subsampling(pair: Pair) -> Layer:
    """Mel rows → the first layer's input."""
    theirs = pair.twin.perception.encoder.pre_encode
    return Layer(
        name="encoder.pre_encode",
        mlx=pair.mlx.perception.encoder.pre_encode,
        twin=lambda mel: theirs(mel, torch.tensor([mel.shape[1]]))[0],
    )


def compare_parts(pair: Pair, part: str, x: Tensor) -> Iterator[Row]:
    """One of `CONFORMER_PARTS` in each layer, on the twin's normed input of the layer."""
    allowed, valid = whole_masks(pair, x)
    further = {"self_attn": {"allowed": allowed}, "conv": {"valid": valid}}.get(part, {})
    for index, theirs in enumerate(pair.twin.perception.encoder.layers):
        normed = getattr(theirs, CONFORMER_PARTS[part])(x)
        ours = pair.mlx.perception.encoder.layers[index][part](to_mlx(normed))
        yield compare(f"encoder.layers.{index}.{part}", ours, getattr(theirs, part)(normed, **further), FLOAT32)
        x = theirs(x, allowed, valid)


def conformer_layers(pair: Pair) -> list[Layer]:
    """Whole layers."""

    def layer(index: int) -> Layer:
        ours, theirs = (side.perception.encoder.layers[index] for side in (pair.mlx, pair.twin))
        return Layer(
            name=f"encoder.layers.{index}",
            mlx=ours,
            twin=lambda x: theirs(x, *whole_masks(pair, x)),
            stepwise=lambda x: in_pieces(ours, ours.make_cache(1, pair.language_dtype), x, 1),
        )

    return [layer(index) for index in range(len(pair.mlx.perception.encoder.layers))]


def whole_masks(pair: Pair, x: Tensor) -> tuple[Tensor, Tensor]:
    """Who may attend to whom (1, F, F), and which frames count (1, F): all of them."""
    lengths = torch.tensor([x.shape[1]])
    left = pair.twin.config.audio_config.encoder.left_context
    return allowed_pairs(x.shape[1], left, lengths), torch.ones(x.shape[:2], dtype=torch.bool)


def projection(pair: Pair) -> Layer:
    """Encoder width → language model width."""
    return Layer(name="perception.projected", mlx=pair.mlx.perception.proj, twin=pair.twin.perception.proj)


def rnnt_blocks(pair: Pair, encoded: Tensor) -> Iterator[Row]:
    """Prediction network and joint on given pieces, then what greedy decoding makes of the frames."""
    decoder, joint, config = pair.twin.rnnt_decoder, pair.twin.rnnt_joint, pair.twin.config.audio_config
    pieces = torch.arange(config.decoder.vocab_size)
    predicted = decoder.prediction(pieces.unsqueeze(0))[0]
    network = pair.mlx.rnnt_decoder.prediction
    cache = network.dec_rnn.lstm.make_cache(1)
    steps = [network(piece, cache) for piece in (None, *to_mlx(pieces)[:, None])]
    yield compare("rnnt.prediction", mx.concatenate(steps), predicted, FLOAT32)
    heard, said = pair.mlx.rnnt_joint.enc(to_mlx(encoded[0])), pair.mlx.rnnt_joint.pred(to_mlx(predicted))
    logits = mx.stack([pair.mlx.rnnt_joint(heard, term[None]) for term in said])
    yield compare("rnnt.logits", logits, joint(encoded, predicted.unsqueeze(1)), FLOAT32)
    ids, frames = greedy_decode(decoder, joint, encoded[0], config)
    found = pair.mlx.rnnt.decode(to_mlx(encoded), pair.mlx.rnnt.make_cache())
    yield compare_ids("rnnt.ids", np.array(found.ids), np.array(ids))
    yield compare_ids("rnnt.frames", np.array(found.frames), np.array(frames))
    state = pair.mlx.rnnt.make_cache()
    framewise = [pair.mlx.rnnt.decode_frame(frame[None, None], state) for frame in to_mlx(encoded[0])]
    emitted = to_numpy(mx.concatenate(framewise))
    yield compare_ids("rnnt.ids, step by step", emitted[emitted != config.decoder.vocab_size], np.array(ids))
