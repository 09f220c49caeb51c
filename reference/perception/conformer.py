"""The FastConformer: subsampling, then blocks of half feed-forward, attention, convolution, half feed-forward.

Unusual: the convolution's `batch_norm` is a LayerNorm despite its name, everything is causal, and no Linear but `out`
and `proj` has a bias.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reference.perception.rel_attention import RelPosMultiHeadAttention, allowed_pairs
from reference.perception.subsampling import CausalDwStridingSubsampling
from voicechat_mlx.config import AudioConfig, EncoderConfig


class FeedForward(nn.Module):
    """Linear, SiLU, Linear."""

    def __init__(self, d_model: int, expansion: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(d_model, d_model * expansion, bias=False)
        self.linear2 = nn.Linear(d_model * expansion, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, F, D) → (B, F, D)."""
        y: Tensor = self.linear2(F.silu(self.linear1(x)))
        return y


class ConformerConvolution(nn.Module):
    """Pointwise, GLU, causal depthwise, LayerNorm, SiLU, pointwise."""

    def __init__(self, d_model: int, kernel_size: int) -> None:
        super().__init__()
        self.left = kernel_size - 1
        self.pointwise_conv1 = nn.Conv1d(d_model, 2 * d_model, 1, bias=False)
        self.depthwise_conv = nn.Conv1d(d_model, d_model, kernel_size, groups=d_model, bias=False)
        self.batch_norm = nn.LayerNorm(d_model)
        self.pointwise_conv2 = nn.Conv1d(d_model, d_model, 1, bias=False)

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        """(B, F, D), valid (B, F) → (B, F, D)."""
        y = F.glu(self.pointwise_conv1(x.transpose(1, 2)), dim=1)  # (B, D, F)
        y = torch.where(valid.unsqueeze(1), y, 0.0)
        y = self.depthwise_conv(F.pad(y, (self.left, 0)))
        y = self.batch_norm(y.transpose(1, 2)).transpose(1, 2)
        y = self.pointwise_conv2(F.silu(y))
        out: Tensor = y.transpose(1, 2)
        return out


class ConformerBlock(nn.Module):
    """One of the encoder's layers."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.d_model
        self.norm_feed_forward1 = nn.LayerNorm(width)
        self.feed_forward1 = FeedForward(width, config.ff_expansion_factor)
        self.norm_self_att = nn.LayerNorm(width)
        self.self_attn = RelPosMultiHeadAttention(width, config.n_heads)
        self.norm_conv = nn.LayerNorm(width)
        self.conv = ConformerConvolution(width, config.conv_kernel_size)
        self.norm_feed_forward2 = nn.LayerNorm(width)
        self.feed_forward2 = FeedForward(width, config.ff_expansion_factor)
        self.norm_out = nn.LayerNorm(width)

    def forward(self, x: Tensor, allowed: Tensor, valid: Tensor) -> Tensor:
        """(B, F, D), allowed (B, F, F), valid (B, F) → (B, F, D)."""
        x = x + 0.5 * self.feed_forward1(self.norm_feed_forward1(x))
        x = x + self.self_attn(self.norm_self_att(x), allowed)
        x = x + self.conv(self.norm_conv(x), valid)
        x = x + 0.5 * self.feed_forward2(self.norm_feed_forward2(x))
        y: Tensor = self.norm_out(x)
        return y


class FastConformerEncoder(nn.Module):
    """Log-mel rows → encoder frames."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.left_context = config.left_context
        self.pre_encode = CausalDwStridingSubsampling(
            config.feat_in, config.subsampling_conv_channels, config.d_model, config.subsampling_factor
        )
        self.layers = nn.ModuleList(ConformerBlock(config) for _ in range(config.n_layers))

    def forward(self, mel: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, features), valid rows (B,) → (B, F, D), valid frames (B,)."""
        x, lengths = self.pre_encode(mel, lengths)
        valid = torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(1)
        allowed = allowed_pairs(x.shape[1], self.left_context, lengths)
        for layer in self.layers:
            x = layer(x, allowed, valid)
        return x, lengths


class Perception(nn.Module):
    """The encoder and its projection to the width of the language model."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.encoder = FastConformerEncoder(config.encoder)
        self.proj = nn.Linear(config.encoder.d_model, config.output_dim)

    def forward(self, mel: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, features), valid rows (B,) → projected (B, F, H), encoded (B, F, D), valid frames (B,)."""
        encoded, lengths = self.encoder(mel, lengths)
        return self.proj(encoded), encoded, lengths
