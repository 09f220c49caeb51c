"""Gated sum of what was just said (codes) and what to say next (text)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reference.talker.backbone import OffsetRMSNorm


class GatedFusion(nn.Module):
    """norm(σ(residual_scale) · (σ(gate) · audio(code / Q) + (1 - σ(gate)) · text(cond)))."""

    def __init__(self, width: int, num_quantizers: int, eps: float) -> None:
        super().__init__()
        self.num_quantizers = num_quantizers
        self.audio_proj = nn.Linear(width, width)
        self.text_proj = nn.Linear(width, width)
        self.gate = nn.Parameter(torch.zeros(width))
        self.residual_scale = nn.Parameter(torch.tensor(0.0))
        self.final_norm = OffsetRMSNorm(width, eps)

    def forward(self, code_embed: Tensor, text_embed: Tensor) -> Tensor:
        """(B, T, h), (B, T, h) → (B, T, h)."""
        gate = torch.sigmoid(self.gate)
        mixed = gate * self.audio_proj(code_embed / self.num_quantizers) + (1 - gate) * self.text_proj(text_embed)
        fused: Tensor = self.final_norm(torch.sigmoid(self.residual_scale) * mixed)
        return fused
