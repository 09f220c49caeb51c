"""The RNNT loss: minus the log probability of all alignments of a piece sequence to the frames.

Unusual: a row of the lattice (one frame, all pieces) is found at once. With E the running sum of a row's emission
scores, α(t, u) = E(t, u) + logcumsumexp over u of [α(t-1, u) + blank(t-1, u) - E(t, u)]. The backward scores β are
the forward scores of the lattice read from its end, so both come from one loop over frames; gradients are written
down, not traced.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def lattice_scores(logits: Tensor, pieces: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    """logits (B, T, U + 1, V + 1), pieces (B, U) → log probabilities of blank (B, T, U + 1), next piece (B, T, U)."""
    total = torch.logsumexp(logits, dim=-1)
    index = pieces[:, None, :, None].expand(-1, logits.shape[1], -1, 1)
    emit = logits[:, :, :-1].gather(-1, index).squeeze(-1) - total[:, :, :-1]
    return logits[..., blank] - total, emit


def rnnt_loss(blank: Tensor, emit: Tensor, lengths: Tensor) -> Tensor:
    """blank (B, T, U + 1), emit (B, T, U), pieces in each row (B,) → loss (B,)."""
    loss: Tensor = _RnntLoss.apply(blank, emit, lengths)
    return loss


class _RnntLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, blank: Tensor, emit: Tensor, lengths: Tensor) -> Tensor:
        blank64, emit64 = blank.double(), emit.double()
        frames, pieces = blank.shape[1], emit.shape[2]
        node = torch.arange(pieces + 1, device=blank.device)
        from_end = (lengths.unsqueeze(1) - node).clamp_min(0)  # (B, U + 1): node u of the reversed lattice
        reversed_blank = take(blank64.flip(1), from_end)[:, 1:]
        reversed_emit = take(emit64.flip(1), (lengths.unsqueeze(1) - 1 - node[:-1]).clamp_min(0))
        both = forward_scores(
            torch.cat([blank64[:, :-1], reversed_blank]), torch.cat([emit64, reversed_emit])
        )  # (2B, T, U + 1)
        alpha, reverse = both.chunk(2)
        last = blank64[:, -1].gather(1, lengths.unsqueeze(1))  # (B, 1): the blank that ends every alignment
        beta = take(reverse.flip(1), from_end) + last.unsqueeze(1)
        log_total = alpha[:, -1].gather(1, lengths.unsqueeze(1)) + last  # (B, 1)
        reachable = node <= lengths.unsqueeze(1)  # (B, U + 1)
        after_blank = F.pad(beta[:, 1:], (0, 0, 0, 1), value=-torch.inf)
        ends = (node == lengths.unsqueeze(1)).unsqueeze(1) & (torch.arange(frames, device=blank.device) == frames - 1)[
            :, None
        ]
        after_blank = after_blank.masked_fill(ends, 0.0)
        blank_use = torch.exp(alpha + blank64 + after_blank - log_total.unsqueeze(1))
        emit_use = torch.exp(alpha[:, :, :-1] + emit64 + beta[:, :, 1:] - log_total.unsqueeze(1))
        ctx.save_for_backward(
            torch.where(reachable.unsqueeze(1), blank_use, 0.0).to(blank.dtype),
            torch.where(reachable[:, None, 1:], emit_use, 0.0).to(emit.dtype),
        )
        return -log_total.squeeze(1).to(blank.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        blank_use, emit_use = ctx.saved_tensors
        weight = -gradients[0][:, None, None]
        return weight * blank_use, weight * emit_use, None


def forward_scores(blank: Tensor, emit: Tensor) -> Tensor:
    """blank (B, T - 1, U + 1) on leaving each frame but the last, emit (B, T, U) → α (B, T, U + 1)."""
    run = F.pad(emit.cumsum(-1), (1, 0))
    rows = [run[:, 0]]
    for t in range(1, run.shape[1]):
        rows.append(run[:, t] + torch.logcumsumexp(rows[-1] + blank[:, t - 1] - run[:, t], dim=-1))
    return torch.stack(rows, dim=1)


def take(scores: Tensor, index: Tensor) -> Tensor:
    """scores (B, T, U), index (B, U') → (B, T, U')."""
    return scores.gather(2, index.unsqueeze(1).expand(-1, scores.shape[1], -1))


def path_loss(blank: Tensor, emit: Tensor, lengths: Tensor, frames: Tensor) -> Tensor:
    """Minus the mean log probability of one alignment: piece u on frame frames[b, u], non-decreasing. → (B,)"""
    piece = torch.arange(emit.shape[2], device=emit.device)
    known = piece < lengths.unsqueeze(1)  # (B, U)
    on_frame = emit.gather(1, frames.unsqueeze(1)).squeeze(1)  # (B, U)
    time = torch.arange(blank.shape[1], device=blank.device)
    emitted = ((frames.unsqueeze(1) <= time[:, None]) & known.unsqueeze(1)).sum(-1)  # (B, T): pieces said when it ends
    blanks = blank.gather(2, emitted.unsqueeze(2)).squeeze(2)
    total = torch.where(known, on_frame, 0.0).sum(1) + blanks.sum(1)
    return -total / (lengths + blank.shape[1])
