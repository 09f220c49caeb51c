"""Three strided convolutions: 10 ms mel rows → 80 ms encoder frames.

Unusual: each stride-2 convolution pads (2, 1) on time and on frequency, so an axis of n becomes n // 2 + 1: 128 rows
give 17 frames, of 17 bins each. Frames past the valid length are zeroed before and after every layer.
"""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

KERNEL, STRIDE, PADDING = 3, 2, (2, 1)
N = TypeVar("N", int, Tensor)


class CausalDwStridingSubsampling(nn.Module):
    """(B, T, features) log-mel → (B, F, d_model)."""

    def __init__(self, features: int, channels: int, d_model: int, factor: int) -> None:
        super().__init__()
        stages = round(math.log2(factor))
        layers: list[nn.Module] = [nn.Conv2d(1, channels, KERNEL, STRIDE), nn.ReLU()]
        for _ in range(stages - 1):
            layers.append(nn.Conv2d(channels, channels, KERNEL, STRIDE, groups=channels))
            layers.append(nn.Conv2d(channels, channels, 1))
            layers.append(nn.ReLU())
        self.conv = nn.Sequential(*layers)
        for _ in range(stages):
            features = strided_length(features)  # 128 → 65 → 33 → 17
        self.out = nn.Linear(channels * features, d_model)

    def forward(self, mel: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, features), valid rows (B,) → (B, F, d_model), valid frames (B,)."""
        x = zero_invalid(mel.unsqueeze(1), lengths)  # (B, 1, T, features)
        for layer in self.conv:
            if isinstance(layer, nn.Conv2d) and layer.stride == (STRIDE, STRIDE):
                x = F.pad(x, (*PADDING, *PADDING))
                lengths = strided_length(lengths)
            x = zero_invalid(layer(x), lengths)
        flat = x.transpose(1, 2).flatten(2)  # (B, F, channels · bins), channel-major
        return self.out(flat), lengths


def strided_length(n: N) -> N:
    """Length of an axis after one padded stride-2 convolution: (n + 3 - 3) // 2 + 1."""
    return (n + sum(PADDING) - KERNEL) // STRIDE + 1


def zero_invalid(x: Tensor, lengths: Tensor) -> Tensor:
    """(B, C, T, bins) with every time step from `lengths[b]` on set to zero."""
    valid = torch.arange(x.shape[2], device=x.device) < lengths.unsqueeze(1)
    return torch.where(valid[:, None, :, None], x, 0.0)
