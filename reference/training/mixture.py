"""The talker's loss: the latent that remains, under a mixture of Gaussians with one standard deviation.

Unusual, and as the publisher trains it: which component is responsible is decided by the distances alone, as if all
were equally likely; the responsible ones move towards the target, and the mixture weights learn to name them. Means are
low-rank and measured in standard deviations, so their distances never need the means themselves.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reference.talker.mog_head import MogHead


def mixture_loss(head: MogHead, trunk: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Trunk outputs (N, h), latents (N, latent) → loss of the responsible components, of the weights (N,)."""
    log_std = head.log_std(trunk)  # (N, 1)
    scaled = (target - head.proj_else(trunk)) * torch.exp(-log_std)
    squared = component_distances(head, trunk, scaled)
    width = target.shape[1]
    log_probability = -width * (0.5 * math.log(2 * math.pi) + log_std) - 0.5 * squared  # (N, K)
    with torch.no_grad():
        responsible = torch.softmax(log_probability, -1) * (1 - smoothing) + smoothing / log_probability.shape[1]
        entropy = (responsible * torch.log(responsible + 1e-8)).sum(-1)
    fit = -(responsible * log_probability).sum(-1)
    choice = entropy - (responsible * torch.log_softmax(head.proj_logits(trunk), -1)).sum(-1)
    return fit, choice


def component_distances(head: MogHead, trunk: Tensor, scaled: Tensor) -> Tensor:
    """Trunk (N, h), scaled targets y (N, latent) → |low_mat_k m_k - y|² for every component k: (N, K)."""
    means = head.proj_mus(trunk).unflatten(-1, (-1, head.rank))  # m (N, K, rank)
    gram = head.low_mat.transpose(1, 2) @ head.low_mat  # (K, rank, rank)
    length = (means * torch.einsum("nkr,krs->nks", means, gram)).sum(-1)
    overlap = (means * torch.einsum("nd,kdr->nkr", scaled, head.low_mat)).sum(-1)
    return (length - 2 * overlap + scaled.square().sum(-1, keepdim=True)).clamp_min(0)
