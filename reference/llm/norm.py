"""RMSNorm, over the whole width or over equal groups of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GroupedRMSNorm(nn.Module):
    """weight · x / sqrt(mean(x²) + eps), the mean taken inside each of `groups` equal groups."""

    def __init__(self, width: int, groups: int, eps: float) -> None:
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """(…, width) → (…, width)."""
        grouped = torch.unflatten(x, -1, (self.groups, -1))
        normed = grouped * torch.rsqrt(grouped.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.flatten(-2)
