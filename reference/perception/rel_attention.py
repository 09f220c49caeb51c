"""Self-attention with relative positions (Transformer-XL) over a causal window.

Unusual: the position score is indexed directly by the distance i - j; the shifting of a padded matrix that
implementations use is only a way to do this indexing without a gather.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class RelPosMultiHeadAttention(nn.Module):
    """Multi-head attention whose scores add a content bias u and a position bias v per head."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads, self.head_dim = n_heads, d_model // n_heads
        self.linear_q = nn.Linear(d_model, d_model, bias=False)
        self.linear_k = nn.Linear(d_model, d_model, bias=False)
        self.linear_v = nn.Linear(d_model, d_model, bias=False)
        self.linear_pos = nn.Linear(d_model, d_model, bias=False)
        self.linear_out = nn.Linear(d_model, d_model, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(n_heads, self.head_dim))
        self.pos_bias_v = nn.Parameter(torch.zeros(n_heads, self.head_dim))

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        """(B, F, D), allowed (B, F, F) → (B, F, D). A row that may attend to nothing gets zero from the values."""
        frames = x.shape[1]
        q, k, v = self.heads(self.linear_q(x)), self.heads(self.linear_k(x)), self.heads(self.linear_v(x))
        table = position_table(frames, x.shape[-1], x.device).to(x.dtype)
        p = self.heads(self.linear_pos(table.unsqueeze(0)))  # (1, H, 2F - 1, d)
        u, bias = self.pos_bias_u.unsqueeze(1), self.pos_bias_v.unsqueeze(1)  # (H, 1, d)
        content = (q + u) @ k.transpose(-1, -2)  # (B, H, F, F)
        by_row = (q + bias) @ p.transpose(-1, -2)  # (B, H, F, 2F - 1), column c is distance F - 1 - c
        position = by_row.gather(-1, distance_columns(frames, x.device).expand(*by_row.shape[:2], -1, -1))
        scores = (content + position) * self.head_dim**-0.5
        allowed = allowed.unsqueeze(1)
        weights = torch.softmax(scores.masked_fill(~allowed, -1e30), dim=-1) * allowed
        mixed: Tensor = self.linear_out((weights @ v).transpose(1, 2).flatten(2))
        return mixed

    def heads(self, x: Tensor) -> Tensor:
        """(B, F, D) → (B, H, F, d)."""
        return torch.unflatten(x, -1, (self.n_heads, self.head_dim)).transpose(1, 2)


def position_table(frames: int, d_model: int, device: torch.device) -> Tensor:
    """(2F - 1, D) sinusoids of the distances F - 1 … -(F - 1): sine in even columns, cosine in odd ones."""
    distances = torch.arange(frames - 1, -frames, -1, dtype=torch.float32, device=device)
    even = torch.arange(0, d_model, 2, dtype=torch.float32, device=device)
    frequencies = torch.exp(even * (-math.log(10000.0) / d_model))
    angles = distances.unsqueeze(1) * frequencies
    return torch.stack([torch.sin(angles), torch.cos(angles)], dim=-1).flatten(1)


def distance_columns(frames: int, device: torch.device) -> Tensor:
    """(F, F): the column of `position_table` that holds the distance i - j."""
    index = torch.arange(frames, device=device)
    return frames - 1 - (index.unsqueeze(1) - index)


def allowed_pairs(frames: int, left_context: int, lengths: Tensor) -> Tensor:
    """(B, F, F): frame i attends to frames i - left … i, both inside the valid length."""
    index = torch.arange(frames, device=lengths.device)
    distance = index.unsqueeze(1) - index
    in_window = (distance >= 0) & (distance <= left_context)
    valid = index < lengths.unsqueeze(1)  # (B, F)
    return in_window & valid.unsqueeze(1) & valid.unsqueeze(2)
