"""Greedy RNNT decoding of a whole batch, and how far transcripts are from the truth.

Unusual: `reference.perception.rnnt` runs its prediction network over all pieces again for each new one; here its LSTM
carries its state, which gives the same pieces in a batch on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from reference.model import VoiceChat


@torch.no_grad()
def greedy_batch(model: VoiceChat, encoded: Tensor) -> list[list[int]]:
    """Encoder frames (B, F, D) → the pieces of each row."""
    prediction, joint = model.rnnt_decoder.prediction, model.rnnt_joint
    lstm = prediction.dec_rnn["lstm"]
    assert isinstance(lstm, nn.LSTM)
    blank, most = model.config.rnnt_blank_id, model.config.audio_config.max_symbols
    rows = len(encoded)
    out, (hidden, cell) = lstm(encoded.new_zeros(rows, 1, lstm.input_size))
    found: list[list[int]] = [[] for _ in range(rows)]
    for frame in encoded.unbind(1):
        active = torch.ones(rows, dtype=torch.bool, device=encoded.device)
        for _ in range(most):
            piece = joint(frame, out[:, 0]).argmax(-1)
            active = active & (piece != blank)
            said = active.nonzero().squeeze(1).tolist()
            if not said:
                break
            for row, index in zip(said, piece[active].tolist(), strict=True):
                found[row].append(index)
            new_out, (new_hidden, new_cell) = lstm(prediction.embed(piece).unsqueeze(1), (hidden, cell))
            out = torch.where(active[:, None, None], new_out, out)
            hidden = torch.where(active[:, None], new_hidden, hidden)
            cell = torch.where(active[:, None], new_cell, cell)
    return found


def edit_distance(a: Sequence[object], b: Sequence[object]) -> int:
    """Insertions, deletions and replacements from `a` to `b`."""
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, start=1):
        previous, row = row, [i]
        for j, right in enumerate(b, start=1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (left != right)))
    return row[-1]


def error_rates(true: Sequence[str], heard: Sequence[str]) -> dict[str, float]:
    """Word error and the share of sentences that are exact, both in percent."""
    words = sum(len(text.split()) for text in true)
    errors = sum(edit_distance(a.split(), b.split()) for a, b in zip(true, heard, strict=True))
    exact = sum(a == b for a, b in zip(true, heard, strict=True))
    return {"word_error": round(100 * errors / max(words, 1), 3), "exact": round(100 * exact / max(len(true), 1), 2)}
