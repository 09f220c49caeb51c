"""Mamba-2 mixer, written as one sum over the past instead of a recurrence.

With state S_t = exp(A dt_t) S_{t-1} + dt_t x_t ⊗ B_t and y_t = S_t C_t + D x_t, unrolling gives
y_t = Σ_{s ≤ t} (C_t · B_s) exp(A Σ_{s < r ≤ t} dt_r) dt_s x_s + D x_t.
Unusual: the norm is gated before it normalises, norm(y · silu(z)), and normalises each of `n_groups` groups on its own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reference.llm.norm import GroupedRMSNorm
from voicechat_mlx.config import TextConfig


class Mamba2Mixer(nn.Module):
    """in_proj → causal convolution → selective state space → gated norm → out_proj."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.n_heads, self.head_dim = config.mamba_num_heads, config.mamba_head_dim
        self.n_groups, self.state_size = config.n_groups, config.ssm_state_size
        self.dt_limit = config.time_step_limit
        self.width, self.conv_width = config.mamba_width, config.mamba_conv_width
        self.in_proj = nn.Linear(config.hidden_size, self.width + self.conv_width + self.n_heads, bias=False)
        self.conv1d = nn.Conv1d(self.conv_width, self.conv_width, config.conv_kernel, groups=self.conv_width)
        self.dt_bias = nn.Parameter(torch.ones(self.n_heads))
        self.A_log = nn.Parameter(torch.zeros(self.n_heads))
        self.D = nn.Parameter(torch.ones(self.n_heads))
        self.norm = GroupedRMSNorm(self.width, config.n_groups, config.layer_norm_epsilon)
        self.out_proj = nn.Linear(self.width, config.hidden_size, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        """(B, T, H) → (B, T, H)."""
        z, x_b_c, dt = torch.split(self.in_proj(u), [self.width, self.conv_width, self.n_heads], dim=-1)
        past = self.conv1d.kernel_size[0] - 1
        x_b_c = F.silu(self.conv1d(F.pad(x_b_c.transpose(1, 2), (past, 0)))).transpose(1, 2)
        groups_width = self.n_groups * self.state_size
        x, b, c = torch.split(x_b_c, [self.width, groups_width, groups_width], dim=-1)
        dt = F.softplus(dt + self.dt_bias).clamp(*self.dt_limit)  # (B, T, heads)
        y = self.state_space(
            torch.unflatten(x, -1, (self.n_heads, self.head_dim)), self.per_head(b), self.per_head(c), dt
        )
        out: Tensor = self.out_proj(self.norm(y.flatten(2) * F.silu(z)))
        return out

    def per_head(self, x: Tensor) -> Tensor:
        """(B, T, groups · state) → (B, T, heads, state): consecutive heads share a group."""
        grouped = torch.unflatten(x, -1, (self.n_groups, self.state_size))
        return grouped.repeat_interleave(self.n_heads // self.n_groups, dim=2)

    def state_space(self, x: Tensor, b: Tensor, c: Tensor, dt: Tensor) -> Tensor:
        """x (B, T, heads, d), B and C (B, T, heads, state), dt (B, T, heads) → y (B, T, heads, d)."""
        decay = decay_between((-torch.exp(self.A_log) * dt).transpose(1, 2))  # (B, heads, t, s)
        similarity = torch.einsum("bthn,bshn->bhts", c, b)
        y = torch.einsum("bhts,bshd->bthd", similarity * decay, dt.unsqueeze(-1) * x)
        return y + self.D.unsqueeze(-1) * x


def decay_between(log_decay: Tensor) -> Tensor:
    """(…, T) → (…, T, T): exp(Σ_{s < r ≤ t} log_decay_r) at row t, column s ≤ t, and zero above the diagonal.

    Each entry sums its own terms; a difference of two long sums would lose digits.
    """
    steps = log_decay.shape[-1]
    lower = torch.ones(steps, steps, dtype=torch.bool, device=log_decay.device).tril()
    terms = log_decay.unsqueeze(-1).expand(*log_decay.shape, steps) * lower.tril(-1)  # row r, column s: kept for s < r
    return torch.exp(terms.cumsum(dim=-2).masked_fill(~lower, -torch.inf))
