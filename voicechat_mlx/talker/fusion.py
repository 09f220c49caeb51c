"""How the talker mixes what it says (text) with what it has just said (audio)."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from voicechat_mlx.nn.fused import fused
from voicechat_mlx.nn.norms import OffsetRMSNorm


class GatedFusion(nn.Module):
    """norm(σ(residual_scale) · (σ(gate) · audio_proj(a / Q) + (1 - σ(gate)) · text_proj(t))), Q codebooks."""

    def __init__(self, hidden: int, num_quantizers: int, eps: float) -> None:
        super().__init__()
        self._num_quantizers = num_quantizers
        self.audio_proj = nn.Linear(hidden, hidden)
        self.text_proj = nn.Linear(hidden, hidden)
        self.gate = mx.zeros((hidden,))
        self.residual_scale = mx.zeros(())
        self.final_norm = OffsetRMSNorm(hidden, eps)
        self.prepare()

    def prepare(self) -> None:
        """σ(residual_scale) · σ(gate) and σ(residual_scale) · (1 - σ(gate)), after the weights are in place."""
        gate, scale = mx.sigmoid(self.gate), mx.sigmoid(self.residual_scale)
        self._audio_share, self._text_share = scale * gate, scale * (1 - gate)

    def __call__(self, audio: mx.array, text: mx.array) -> mx.array:
        """Code embeddings and text embeddings, (B, T, hidden) each → (B, T, hidden)."""
        heard = self._audio_share * fused(audio / self._num_quantizers, self.audio_proj)
        return self.final_norm(heard + self._text_share * fused(text, self.text_proj))
