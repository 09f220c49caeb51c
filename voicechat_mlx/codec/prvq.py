"""Residual vector quantisation with 31 codebooks of means: each quantises what the ones before it left over."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn


class Variance(nn.Module):
    """A stored scalar that decoding does not need; kept so that every tensor of a checkpoint has its place."""

    def __init__(self) -> None:
        super().__init__()
        self.variance = mx.zeros(())


class Prvq(nn.Module):
    """Latents (…, latent) ↔ codes (…, Q)."""

    def __init__(self, num_quantizers: int, codebook_size: int, latent_dim: int) -> None:
        super().__init__()
        self.mus_list = [mx.zeros((codebook_size, latent_dim)) for _ in range(num_quantizers)]
        self.variance_list = [Variance() for _ in range(num_quantizers)]
        self._table = mx.concatenate(self.mus_list)

    def prepare(self) -> None:
        """All books in one table (Q·K, latent), the books its views, so that decoding is one gather."""
        self._table = mx.concatenate(self.mus_list)
        mx.eval(self._table)
        self.mus_list = list(mx.split(self._table, len(self.mus_list)))

    def encode(self, latents: mx.array) -> mx.array:
        """(…, latent) → (…, Q) int32: the nearest mean, subtracted, book after book."""
        codes = []
        for means in self.mus_list:
            code = (0.5 * mx.square(means).sum(axis=-1) - latents @ means.T).argmin(axis=-1)
            latents = latents - means[code]
            codes.append(code)
        return mx.stack(codes, axis=-1).astype(mx.int32)

    def decode(self, codes: mx.array) -> mx.array:
        """(…, Q) → (…, latent): the sum of the chosen means."""
        size = self.mus_list[0].shape[0]
        return self._table[codes + mx.arange(len(self.mus_list)) * size].sum(axis=-2)
