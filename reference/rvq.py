"""Residual quantisation, shared by the codec and the talker: a latent as one entry from each of several codebooks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def residual_quantize(books: Iterable[Tensor], latents: Tensor) -> Tensor:
    """books Q × (K, latent), latents (…, latent) → (…, Q): each book's nearest entry to what the earlier ones left."""
    codes = []
    residual = latents
    for book in books:
        code = (residual.unsqueeze(-2) - book).square().sum(-1).argmin(-1)
        residual = residual - book[code]
        codes.append(code)
    return torch.stack(codes, dim=-1)


def sum_of_entries(books: Iterable[Tensor], codes: Tensor) -> Tensor:
    """books Q × (K, latent), codes (…, Q) → (…, latent): Σ_q books[q][codes[…, q]]."""
    return torch.stack([book[code] for book, code in zip(books, codes.unbind(-1), strict=True)]).sum(0)
