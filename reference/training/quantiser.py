"""Learning the codec's codebooks: k-means to begin with, then moving averages of what each entry stands for.

Unusual: the books are the parameters of `reference.codec.prvq.Prvq` but no gradient reaches them; gradients pass
straight through to the encoder. Entries that nothing uses are put where data is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reference.codec.prvq import Prvq

DECAY = 0.98
UNUSED = 0.05
"""An entry that fewer latents than this take, on average over recent batches, is placed anew."""


class BookLearner(nn.Module):
    """The running sums beside the books: counts (Q, K) and sums (Q, K, latent), and the last batch's residuals."""

    counts: Tensor
    sums: Tensor
    residuals: Tensor

    def __init__(self, prvq: Prvq, latents_per_batch: int) -> None:
        super().__init__()
        levels, (entries, width) = len(prvq.mus_list), prvq.mus_list[0].shape
        self.books = prvq.mus_list
        for book in self.books:
            book.requires_grad_(False)
        self.register_buffer("counts", torch.ones(levels, entries))
        self.register_buffer("sums", torch.zeros(levels, entries, width))
        self.register_buffer("residuals", torch.zeros(levels, latents_per_batch, width))

    @torch.no_grad()
    def start(self, latents: Tensor, rounds: int) -> None:
        """k-means, book after book, on latents (N, width)."""
        residual = latents
        for level, book in enumerate(self.books):
            choice = torch.randperm(len(residual), device=residual.device)[torch.arange(len(book)) % len(residual)]
            book.copy_(residual[choice])
            for _ in range(rounds):
                members = membership(nearest(book, residual), len(book))
                count = members.sum(0).unsqueeze(1)
                book.copy_(torch.where(count > 0, members.T @ residual / count.clamp_min(1), book))
            code = nearest(book, residual)
            self.counts[level] = membership(code, len(book)).mean(0) * self.residuals.shape[1]
            self.sums[level] = book * self.counts[level].unsqueeze(1)
            residual = residual - book[code]

    @torch.no_grad()
    def quantise(self, latents: Tensor, levels: Tensor) -> Tensor:
        """latents (N, width) → the sum of the entries of the first `levels` (N,) books; the books learn from all."""
        residual = latents
        total = torch.zeros_like(latents)
        for level, book in enumerate(self.books):
            code = nearest(book, residual)
            entry = book[code]
            total = total + entry * (level < levels).unsqueeze(1)
            members = membership(code, len(book))
            self.residuals[level].copy_(residual)
            self.counts[level].mul_(DECAY).add_(members.sum(0), alpha=1 - DECAY)
            self.sums[level].mul_(DECAY).add_(members.T @ residual, alpha=1 - DECAY)
            residual = residual - entry
            book.copy_(self.sums[level] / self.counts[level].clamp_min(1e-3).unsqueeze(1))
        return total

    @torch.no_grad()
    def replace_unused(self) -> None:
        """Entries that nothing takes become residuals of the last batch, drawn at random."""
        for level, book in enumerate(self.books):
            unused = self.counts[level] < UNUSED
            choice = torch.randint(self.residuals.shape[1], (len(book),), device=book.device)
            fresh = self.residuals[level][choice]
            book.copy_(torch.where(unused.unsqueeze(1), fresh, book))
            self.counts[level].copy_(torch.where(unused, 1.0, self.counts[level]))
            self.sums[level].copy_(torch.where(unused.unsqueeze(1), fresh, self.sums[level]))


def nearest(book: Tensor, latents: Tensor) -> Tensor:
    """book (K, width), latents (N, width) → (N,): argmin of ½|e|² - e · x."""
    return (0.5 * book.square().sum(1) - latents @ book.T).argmin(1)


def membership(code: Tensor, entries: int) -> Tensor:
    """(N,) → (N, entries): 1 where a latent takes an entry, else 0."""
    return (code.unsqueeze(1) == torch.arange(entries, device=code.device)).float()
