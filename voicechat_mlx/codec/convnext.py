"""The codec's building block, ConvNeXt in one dimension, causal. Source: Liu et al. 2022."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from voicechat_mlx.nn.activations import gelu
from voicechat_mlx.nn.cache import Tail
from voicechat_mlx.nn.conv import DepthwiseConv1d, PointwiseConv1d
from voicechat_mlx.nn.norms import LayerNorm

LAYER_NORM_EPS = 1e-6


class ConvNeXtBlock(nn.Module):
    """x + pwconv2(gelu(pwconv1(norm(dwconv(x))))), the exact (erf) GELU, four times as wide inside."""

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__()
        self.dwconv = DepthwiseConv1d(channels, kernel_size, bias=True)
        self.norm = LayerNorm(channels, eps=LAYER_NORM_EPS)
        self.pwconv1 = PointwiseConv1d(channels, 4 * channels, bias=True)
        self.pwconv2 = PointwiseConv1d(4 * channels, channels, bias=True)

    def __call__(self, x: mx.array, cache: Tail | None = None) -> mx.array:
        """(B, T, C) → (B, T, C)."""
        return x + self.pwconv2(gelu(self.pwconv1(self.dwconv(x, cache, norm=self.norm))))
