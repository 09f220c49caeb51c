"""Residual vector quantiser: 31 codebooks, each coding what the ones before left over.

Unusual: it was trained as a probabilistic quantiser, so checkpoints carry a variance per book; nothing here uses it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reference.rvq import residual_quantize, sum_of_entries


class Variance(nn.Module):
    """A scalar that checkpoints carry."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("variance", torch.ones(()))


class Prvq(nn.Module):
    """Codes ↔ latents."""

    def __init__(self, num_quantizers: int, codebook_size: int, latent_dim: int) -> None:
        super().__init__()
        books = (nn.Parameter(torch.zeros(codebook_size, latent_dim)) for _ in range(num_quantizers))
        self.mus_list = nn.ParameterList(books)
        self.variance_list = nn.ModuleList(Variance() for _ in range(num_quantizers))

    def encode(self, latents: Tensor) -> Tensor:
        """(B, F, latent) → (B, F, Q): nearest mean of each book to what is left, subtracted before the next."""
        return residual_quantize(self.mus_list, latents)

    def decode(self, codes: Tensor) -> Tensor:
        """(B, F, Q) → (B, F, latent): the sum of the chosen means."""
        return sum_of_entries(self.mus_list, codes)
