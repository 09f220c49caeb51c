"""The talker's transformer: Gemma-3 style blocks over injected embeddings.

Unusual: no sqrt(hidden) scaling of the input, norms multiply by 1 + weight, queries and keys are normed per head before
RoPE, blocks norm before and after attention and MLP, and every sixth layer sees the whole past while the others see a
window.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from voicechat_mlx.config import TtsConfig


class OffsetRMSNorm(nn.Module):
    """(1 + weight) · x / sqrt(mean(x²) + eps)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """(…, width) → (…, width)."""
        return (1 + self.weight) * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


class GatedMlp(nn.Module):
    """down(gelu_tanh(gate(x)) · up(x))."""

    def __init__(self, width: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, intermediate, bias=False)
        self.up_proj = nn.Linear(width, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(…, width) → (…, width)."""
        y: Tensor = self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))
        return y


class TalkerAttention(nn.Module):
    """Causal attention over a window (None: the whole past), scale query_pre_attn_scalar^-0.5."""

    def __init__(self, config: TtsConfig, rope_base: float, window: int | None) -> None:
        super().__init__()
        self.head_dim, self.scale = config.head_dim, config.query_pre_attn_scalar**-0.5
        self.rope_base, self.window = rope_base, window
        self.queries_per_key = config.num_attention_heads // config.num_key_value_heads
        query_width, key_width = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key_width, bias=False)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=False)
        self.q_norm = OffsetRMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = OffsetRMSNorm(self.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, h) → (B, T, h)."""
        q = rotate(self.q_norm(split_heads(self.q_proj(x), self.head_dim)), self.rope_base)
        k = rotate(self.k_norm(split_heads(self.k_proj(x), self.head_dim)), self.rope_base)
        v = split_heads(self.v_proj(x), self.head_dim)
        k, v = (heads.repeat_interleave(self.queries_per_key, dim=1) for heads in (k, v))
        scores = q @ k.transpose(-1, -2) * self.scale
        visible = causal_window(x.shape[1], self.window, x.device)
        weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
        y: Tensor = self.o_proj((weights @ v).transpose(1, 2).flatten(2))
        return y


class TalkerBlock(nn.Module):
    """x + post(attn(pre(x))), then x + post(mlp(pre(x)))."""

    def __init__(self, config: TtsConfig, rope_base: float, window: int | None) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = OffsetRMSNorm(width, eps)
        self.self_attn = TalkerAttention(config, rope_base, window)
        self.post_attention_layernorm = OffsetRMSNorm(width, eps)
        self.pre_feedforward_layernorm = OffsetRMSNorm(width, eps)
        self.mlp = GatedMlp(width, config.intermediate_size)
        self.post_feedforward_layernorm = OffsetRMSNorm(width, eps)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, h) → (B, T, h)."""
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x)))
        out: Tensor = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return out


class TalkerBackbone(nn.Module):
    """Fused embeddings → hidden states after the final norm."""

    def __init__(self, config: TtsConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(make_block(config, index) for index in range(config.num_hidden_layers))
        self.norm = OffsetRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, h) → (B, T, h)."""
        for layer in self.layers:
            x = layer(x)
        hidden: Tensor = self.norm(x)
        return hidden


def make_block(config: TtsConfig, index: int) -> TalkerBlock:
    """Every `sliding_window_pattern`-th layer is global with its own RoPE base."""
    if (index + 1) % config.sliding_window_pattern == 0:
        return TalkerBlock(config, config.rope_global_base_freq, None)
    return TalkerBlock(config, config.rope_local_base_freq, config.sliding_window)


def causal_window(steps: int, window: int | None, device: torch.device) -> Tensor:
    """(T, T): position i sees i - window + 1 … i, itself included."""
    index = torch.arange(steps, device=device)
    distance = index.unsqueeze(1) - index
    return (distance >= 0) & (distance < (steps if window is None else window))


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """(B, T, heads · d) → (B, heads, T, d)."""
    return torch.unflatten(x, -1, (-1, head_dim)).transpose(1, 2)


def rotate(x: Tensor, base: float) -> Tensor:
    """RoPE on (…, T, d) at positions 0 … T - 1: component k turns together with component k + d/2."""
    half = x.shape[-1] // 2
    frequencies = base ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)
    angles = torch.arange(x.shape[-2], dtype=torch.float32, device=x.device).unsqueeze(1) * frequencies  # (T, d/2)
    first, second = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
