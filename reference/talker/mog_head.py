"""Mixture-of-Gaussians head: hidden state → a Gaussian over the residual latent that the next codebooks quantise.

Unusual: component means are low-rank, mean_c = low_mat[c] @ (proj_mus[c] @ x), and are scaled by the one standard
deviation that all components share; guidance is applied after the final norm.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reference.talker.backbone import GatedMlp, OffsetRMSNorm
from voicechat_mlx.config import MogHeadConfig


class MogLayer(nn.Module):
    """x + post_norm(mlp(pre_norm(x)))."""

    def __init__(self, width: int, config: MogHeadConfig) -> None:
        super().__init__()
        self.pre_norm = OffsetRMSNorm(width, config.eps)
        self.mlp = GatedMlp(width, config.intermediate_size)
        self.post_norm = OffsetRMSNorm(width, config.eps)

    def forward(self, x: Tensor) -> Tensor:
        """(…, h) → (…, h)."""
        out: Tensor = x + self.post_norm(self.mlp(self.pre_norm(x)))
        return out


class MogHead(nn.Module):
    """Trunk, mixture weights, component means, shared log standard deviation."""

    def __init__(self, width: int, latent_size: int, config: MogHeadConfig) -> None:
        super().__init__()
        components, rank = config.num_predictions, config.low_rank
        self.min_log_std, self.rank = config.min_log_std, rank
        layers = [MogLayer(width, config) for _ in range(config.num_layers)]
        self.mlp_stack = nn.Sequential(*layers, OffsetRMSNorm(width, config.eps))
        self.proj_logits = nn.Linear(width, components, bias=False)
        self.proj_mus = nn.Linear(width, components * rank, bias=False)
        self.proj_logs = nn.Linear(width, 1, bias=False)
        self.proj_else = nn.Linear(width, latent_size, bias=False)
        self.low_mat = nn.Parameter(torch.zeros(components, latent_size, rank))

    def forward(self, x: Tensor) -> Tensor:
        """(…, h) → (…, h): the trunk, final norm included."""
        y: Tensor = self.mlp_stack(x)
        return y

    def log_std(self, x: Tensor) -> Tensor:
        """Trunk output (…, h) → (…, 1)."""
        return torch.clamp_min(self.proj_logs(x), self.min_log_std)

    def mean(self, x: Tensor, component: Tensor) -> Tensor:
        """Trunk output (…, h), chosen component (…,) → (…, latent)."""
        down = torch.unflatten(self.proj_mus.weight, 0, (-1, self.rank))[component]  # (…, rank, h)
        low_rank = (self.low_mat[component] @ (down @ x.unsqueeze(-1))).squeeze(-1)
        mean: Tensor = low_rank * torch.exp(self.log_std(x)) + self.proj_else(x)
        return mean

    def infer(
        self, cond: Tensor, uncond: Tensor, gumbel: Tensor, *, guidance: float, top_p: float
    ) -> tuple[Tensor, Tensor]:
        """Inputs (B, h) with and without text, gumbel (B, K) → mean (B, latent), log standard deviation (B, 1)."""
        cond, uncond = self(cond), self(uncond)
        x = cond + guidance * (cond - uncond)
        logits = nucleus(self.proj_logits(x), top_p)
        component = (torch.log_softmax(logits, dim=-1) + gumbel).argmax(dim=-1)
        return self.mean(x, component), self.log_std(x)


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    """(…, K) → the same, -inf where the components above already hold a mass of `top_p`; the largest always stays."""
    order = logits.argsort(dim=-1, descending=True, stable=True)
    mass = torch.softmax(logits, dim=-1).gather(-1, order)
    mass_above = mass.cumsum(dim=-1) - mass
    keep = mass_above < top_p
    keep = keep | (torch.arange(logits.shape[-1], device=logits.device) == 0)
    keep_by_component = torch.zeros_like(keep).scatter(-1, order, keep)
    return logits.masked_fill(~keep_by_component, -torch.inf)
