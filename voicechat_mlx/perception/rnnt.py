"""The transcript branch: an RNN transducer decoded greedily, at most `max_symbols` pieces per 80 ms frame.

Unusual: the prediction network moves only when a piece is emitted, so its projection is kept between frames and
one joint evaluation covers many frames at once, up to the next piece. Source: Graves 2012.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from mlx import nn
from numpy.typing import NDArray

from voicechat_mlx.config import AudioConfig
from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.activations import relu
from voicechat_mlx.nn.cache import Cache, arrays_of, set_arrays
from voicechat_mlx.nn.fused import fused
from voicechat_mlx.nn.lstm import LSTM, LSTMCache

LOOKAHEAD_FRAMES = 16
"""Frames per joint evaluation: long enough to skip silence, short enough not to waste work at each piece."""


class DecRnn(nn.Module):
    """Holds the LSTM under the checkpoint's path `dec_rnn.lstm`."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.lstm = LSTM(width, layers)


class PredictionNetwork(nn.Module):
    """Piece history → prediction vector. Blank is never embedded: before the first piece the input is zero."""

    def __init__(self, vocab_size: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size + 1, width)
        self.dec_rnn = DecRnn(width, layers)

    def __call__(self, piece: mx.array | None, cache: LSTMCache) -> mx.array:
        """One piece id (1,), or None for the start → (1, width)."""
        x = mx.zeros((1, self.embed.weight.shape[1])) if piece is None else self.embed(piece)
        return self.dec_rnn.lstm(x, cache)


class RnntDecoder(nn.Module):
    """Holds the prediction network under the checkpoint's path `rnnt_decoder.prediction`."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        decoder = config.decoder
        self.prediction = PredictionNetwork(decoder.vocab_size, decoder.pred_hidden, decoder.pred_rnn_layers)


class JointNetwork(nn.Module):
    """linear(relu(enc(e) + pred(p))): logits over the pieces and blank, which is the last."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        joint = config.joint
        self.enc = nn.Linear(joint.encoder_hidden, joint.joint_hidden)
        self.pred = nn.Linear(joint.pred_hidden, joint.joint_hidden)
        self.joint_net = [nn.ReLU(), nn.Identity(), nn.Linear(joint.joint_hidden, joint.num_classes + 1)]

    def __call__(self, encoder_term: mx.array, prediction_term: mx.array) -> mx.array:
        """enc(e) (F, joint), pred(p) (1, joint) → logits (F, V + 1)."""
        return self.joint_net[2](relu(encoder_term + prediction_term))


class RnntCache(Cache):
    """Where greedy decoding stands: the LSTM after the last piece, and its projected output."""

    def __init__(self, lstm: LSTMCache, prediction_term: mx.array) -> None:
        self.lstm = lstm
        self.prediction_term = prediction_term


@dataclass
class Pieces:
    """Non-blank pieces in order, each with the index of its frame."""

    ids: list[int] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)

    def __iadd__(self, more: Pieces) -> Pieces:
        """Append what came later."""
        self.ids += more.ids
        self.frames += more.frames
        return self


class GreedyRnnt:
    """Greedy decoding over the two networks."""

    def __init__(self, decoder: RnntDecoder, joint: JointNetwork, max_symbols: int) -> None:
        self._prediction, self._joint, self._max_symbols = decoder.prediction, joint, max_symbols
        self._blank = decoder.prediction.embed.weight.shape[0] - 1
        layers, wide, twice = decoder.prediction.dec_rnn.lstm.joined[0].shape
        held = 2 * layers * twice // 2 + 3 * joint.pred.bias.size + twice + wide
        self._has_kernel = 4 * held <= cuda.SHARED_BYTES and joint.pred.bias.size % 4 == 0 and twice % 8 == 0

    def make_cache(self) -> RnntCache:
        """Before the first piece."""
        lstm = self._prediction.dec_rnn.lstm.make_cache(1)
        return RnntCache(lstm, self._joint.pred(self._prediction(None, lstm)))

    def pieces(self, row: NDArray[np.uint32], frame: int) -> Pieces:
        """What `decode_frame` gave for that frame, on the host."""
        ids = [piece for piece in row.tolist() if piece != self._blank]
        return Pieces(ids, [frame] * len(ids))

    def decode_frame(self, encoded: mx.array, cache: RnntCache) -> mx.array:
        """(1, 1, d_model) float32 → (max_symbols,) pieces, blank where there are no more; never looks at the host.

        All max_symbols rounds run; a round after the first blank changes nothing.
        """
        encoder_term = fused(encoded[0], self._joint.enc)
        if cuda.available() and self._has_kernel:
            return self._frame(encoder_term, cache)
        pieces, speaking = [], mx.array(True)
        for _ in range(self._max_symbols):
            best = self._joint(encoder_term, cache.prediction_term).argmax(axis=-1)
            speaking = speaking & (best[0] != self._blank)
            pieces.append(mx.where(speaking, best, self._blank))
            moved = cache.clone()
            moved.prediction_term = self._joint.pred(self._prediction(pieces[-1], moved.lstm))
            choices = zip(arrays_of(moved), arrays_of(cache), strict=True)
            set_arrays(cache, [mx.where(speaking, new, old) for new, old in choices])
        return mx.concatenate(pieces)

    def _frame(self, encoder_term: mx.array, cache: RnntCache) -> mx.array:
        """The same in one launch."""
        joint, lstm, pred = self._joint.joint_net[2], self._prediction.dec_rnn.lstm, self._joint.pred
        pieces, cache.prediction_term, (cache.lstm.hidden, cache.lstm.cell) = cuda.rnnt_frame(
            encoder_term,
            cache.prediction_term,
            (cache.lstm.hidden, cache.lstm.cell),
            (joint.weight, joint.bias),
            self._prediction.embed.weight,
            lstm.joined,
            (pred.weight, pred.bias),
            most=self._max_symbols,
        )
        return pieces

    def decode(self, encoded: mx.array, cache: RnntCache, first_frame: int = 0) -> Pieces:
        """(1, F, d_model) float32 → the pieces of these frames. Host loop: one look per piece or 16 frames."""
        encoder_terms = self._joint.enc(encoded[0])
        pieces, frame, symbols, count = Pieces(), 0, 0, encoded.shape[1]
        while frame < count:
            window = encoder_terms[frame : frame + LOOKAHEAD_FRAMES]
            best = np.asarray(self._joint(window, cache.prediction_term).argmax(axis=-1))
            hits = np.flatnonzero(best != self._blank)
            if len(hits) == 0:
                frame, symbols = frame + len(best), 0
                continue
            if hits[0] > 0:
                frame, symbols = frame + int(hits[0]), 0
            piece = int(best[hits[0]])
            pieces.ids.append(piece)
            pieces.frames.append(first_frame + frame)
            cache.prediction_term = self._joint.pred(self._prediction(mx.array([piece]), cache.lstm))
            symbols += 1
            if symbols == self._max_symbols:
                frame, symbols = frame + 1, 0
        return pieces
