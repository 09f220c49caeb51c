"""RNNT transcript: a prediction network over the emitted pieces, a joint network, greedy search.

Unusual: blank is never embedded; the prediction network starts on a zero vector. Its state moves only when a piece is
emitted, so its output is a function of the pieces alone, and is written so: LSTM(0, e(y1), …, e(yu)), last output.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voicechat_mlx.config import AudioConfig, DecoderConfig, JointConfig

SPECIAL_PIECES = frozenset({"<unk>", "<pad>", "<s>", "</s>"})
LANGUAGE_TAG = re.compile(r"<[a-z]{2,3}-[A-Za-z]{2,4}>")


class PredictionNetwork(nn.Module):
    """Embedding and stacked LSTM over the pieces emitted so far."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width = config.pred_hidden
        self.embed = nn.Embedding(config.vocab_size + 1, width)  # the last row is blank's and is not used
        self.dec_rnn = nn.ModuleDict({"lstm": nn.LSTM(width, width, config.pred_rnn_layers, batch_first=True)})

    def forward(self, pieces: Tensor) -> Tensor:
        """(B, U) → (B, U + 1, P): output u has seen the first u pieces."""
        inputs = F.pad(self.embed(pieces), (0, 0, 1, 0))  # a zero vector before the first piece
        outputs: Tensor = self.dec_rnn["lstm"](inputs)[0]
        return outputs


class RnntDecoder(nn.Module):
    """Holds the prediction network under the name that checkpoints use."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.prediction = PredictionNetwork(config)


class JointNetwork(nn.Module):
    """Encoder frame and prediction output → logits over the pieces and blank."""

    def __init__(self, config: JointConfig) -> None:
        super().__init__()
        self.enc = nn.Linear(config.encoder_hidden, config.joint_hidden)
        self.pred = nn.Linear(config.pred_hidden, config.joint_hidden)
        self.joint_net = nn.Sequential(nn.ReLU(), nn.Identity(), nn.Linear(config.joint_hidden, config.num_classes + 1))

    def forward(self, encoded: Tensor, predicted: Tensor) -> Tensor:
        """(…, D), (…, P) → (…, V + 1)."""
        logits: Tensor = self.joint_net(self.enc(encoded) + self.pred(predicted))
        return logits


def greedy_decode(
    decoder: RnntDecoder, joint: JointNetwork, encoded: Tensor, config: AudioConfig
) -> tuple[list[int], list[int]]:
    """(F, D) → every emitted piece and the frame it was emitted on; at most `max_symbols` a frame."""
    blank = config.decoder.vocab_size
    ids: list[int] = []
    frames: list[int] = []
    predicted = last_output(decoder, ids, encoded.device)
    for index, frame in enumerate(encoded):
        for _ in range(config.max_symbols):
            piece = int(joint(frame, predicted).argmax())
            if piece == blank:
                break
            ids.append(piece)
            frames.append(index)
            predicted = last_output(decoder, ids, encoded.device)
    return ids, frames


def last_output(decoder: RnntDecoder, ids: list[int], device: torch.device) -> Tensor:
    """What the prediction network says after these pieces: (P,)."""
    outputs: Tensor = decoder.prediction(torch.tensor([ids], dtype=torch.int64, device=device))
    return outputs[0, -1]


def decode_pieces(ids: Sequence[int], vocabulary: Sequence[str]) -> str:
    """Ids → text: special pieces and language tags dropped, `▁` to space, stripped."""
    pieces = (vocabulary[index] for index in ids)
    kept = (piece for piece in pieces if piece not in SPECIAL_PIECES and not LANGUAGE_TAG.fullmatch(piece))
    return "".join(kept).replace("▁", " ").strip()
