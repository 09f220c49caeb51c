"""Nemotron-H: pre-norm residual layers, each ONE of Mamba-2 (M), attention (*) or squared-ReLU MLP (-).

Unusual: it takes embeddings, not ids, and ends at the final norm; the two heads belong to the model that owns it.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from reference.llm.attention import Attention
from reference.llm.mamba import Mamba2Mixer
from reference.llm.norm import GroupedRMSNorm
from voicechat_mlx.config import TextConfig


class Mlp(nn.Module):
    """down(relu(up(x))²)."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, H) → (B, T, H)."""
        y: Tensor = self.down_proj(F.relu(self.up_proj(x)).square())
        return y


MIXERS: dict[str, type[Mamba2Mixer] | type[Attention] | type[Mlp]] = {"M": Mamba2Mixer, "*": Attention, "-": Mlp}


class Block(nn.Module):
    """x + mixer(norm(x))."""

    def __init__(self, config: TextConfig, letter: str) -> None:
        super().__init__()
        self.norm = GroupedRMSNorm(config.hidden_size, 1, config.layer_norm_epsilon)
        self.mixer = MIXERS[letter](config)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, H) → (B, T, H)."""
        y: Tensor = x + self.mixer(self.norm(x))
        return y


class NemotronH(nn.Module):
    """Fused embeddings → hidden states after the final norm."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(config, letter) for letter in config.hybrid_override_pattern)
        self.norm_f = GroupedRMSNorm(config.hidden_size, 1, config.layer_norm_epsilon)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, H) → (B, T, H)."""
        for layer in self.layers:
            x = layer(x)
        hidden: Tensor = self.norm_f(x)
        return hidden
