"""Grouped-query causal attention. Unusual: no positional encoding at all; order comes from the Mamba layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voicechat_mlx.config import TextConfig


class Attention(nn.Module):
    """Several query heads to each key-value head, scale head_dim^-0.5."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.queries_per_key = config.num_attention_heads // config.num_key_value_heads
        query_width, key_width = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key_width, bias=False)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, H) → (B, T, H)."""
        q = self.heads(self.q_proj(x))
        k = self.heads(self.k_proj(x)).repeat_interleave(self.queries_per_key, dim=1)
        v = self.heads(self.v_proj(x)).repeat_interleave(self.queries_per_key, dim=1)
        scores = q @ k.transpose(-1, -2) * self.head_dim**-0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        weights = torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1)
        out: Tensor = self.o_proj((weights @ v).transpose(1, 2).flatten(2))
        return out

    def heads(self, x: Tensor) -> Tensor:
        """(B, T, heads · d) → (B, heads, T, d)."""
        return torch.unflatten(x, -1, (-1, self.head_dim)).transpose(1, 2)
