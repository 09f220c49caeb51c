"""ConvNeXt block in one dimension. Unusual: the depthwise convolution is causal; GELU is the exact one."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class ConvNeXtBlock(nn.Module):
    """x + pwconv2(gelu(pwconv1(norm(dwconv(x)))))."""

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__()
        self.left = kernel_size - 1
        self.dwconv = nn.Conv1d(channels, channels, kernel_size, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Conv1d(channels, 4 * channels, 1)
        self.pwconv2 = nn.Conv1d(4 * channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T) → (B, C, T)."""
        y = self.dwconv(F.pad(x, (self.left, 0)))
        y = self.norm(y.transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.pwconv2(F.gelu(self.pwconv1(y)))
        return out
