"""The mixture-of-Gaussians head: hidden state → a mean and a log scale in the codec's latent space.

Component c is drawn by Gumbel-max from the nucleus of softmax(proj_logits x); its mean is low-rank,
low_mat[c] (proj_mus[c] x). Unusual: only the drawn component's rows of `proj_mus` are read, 1/1024 of them.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx import nn

from voicechat_mlx.config import TtsConfig
from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.fused import fused_after
from voicechat_mlx.nn.linear import LinearGroup
from voicechat_mlx.nn.norms import OffsetRMSNorm
from voicechat_mlx.talker.backbone import GatedMlp, Sum


class MogLayer(nn.Module):
    """x + post_norm(mlp(pre_norm(x)))."""

    def __init__(self, hidden: int, intermediate: int, eps: float) -> None:
        super().__init__()
        self.pre_norm = OffsetRMSNorm(hidden, eps)
        self.mlp = GatedMlp(hidden, intermediate)
        self.post_norm = OffsetRMSNorm(hidden, eps)

    def __call__(self, x: mx.array) -> mx.array:
        """(…, hidden) → the same shape."""
        return self.after(Sum(x)).done()

    def after(self, entering: Sum) -> Sum:
        """The same between sums that are left to the next layer."""
        return Sum(*self.mlp.after(entering, self.pre_norm), self.post_norm)


SMALLEST_TOP_P = 1e-30
"""Above zero, so that the mass above the largest component, 0, is below it."""


def draw_from_nucleus(logits: mx.array, gumbel: mx.array, top_p: float) -> mx.array:
    """(K,) logits and Gumbel numbers → the index () of a component drawn from the smallest set of mass top_p.

    A component stays while the mass strictly above it is below top_p, so the largest always stays.
    """
    order = mx.argsort(-logits)
    ranked, scores = (mx.take_along_axis(numbers, order, axis=0) for numbers in (logits, logits + gumbel))
    above = mx.cumsum(mx.softmax(ranked, precise=True), inclusive=False)
    scores = mx.where(above < max(top_p, SMALLEST_TOP_P), scores, -mx.inf)
    return order[scores.argmax()]


class MogHead(nn.Module):
    """Hidden rows (2, hidden), conditional and not → mean (latent,) and log scale (1,)."""

    def __init__(self, config: TtsConfig) -> None:
        super().__init__()
        head, hidden = config.mog_head, config.hidden_size
        self._components, self._rank, self._min_log_std = head.num_predictions, head.low_rank, head.min_log_std
        self._guidance, self._top_p = config.guidance_scale, config.top_p
        self.mlp_stack: list[Any] = [
            *(MogLayer(hidden, head.intermediate_size, head.eps) for _ in range(head.num_layers)),
            OffsetRMSNorm(hidden, head.eps),
        ]
        self.proj_logits = nn.Linear(hidden, self._components, bias=False)
        self.proj_mus = nn.Linear(hidden, self._components * self._rank, bias=False)
        self.proj_logs = nn.Linear(hidden, 1, bias=False)
        self.proj_else = nn.Linear(hidden, config.latent_size, bias=False)
        self.low_mat = mx.zeros((self._components, config.latent_size, self._rank))
        self._projections = LinearGroup(self, "proj_logits", "proj_else", "proj_logs")

    def prepare(self) -> None:
        """Join the projections that every draw needs; what guidance makes of both rows, (1, 2).

        Of each component, views of what leads to its mean: (components, hidden, rank) and (components, rank, latent).
        """
        self._projections.join()
        self._guided = mx.array([[1 + self._guidance, -self._guidance]])
        self._into_rank = self.proj_mus.weight.reshape(self._components, self._rank, -1).swapaxes(1, 2)
        self._into_latent = self.low_mat.swapaxes(1, 2)

    def __call__(self, hidden: mx.array, gumbel: mx.array, shared: mx.array | None = None) -> tuple[mx.array, mx.array]:
        """`shared` (1, hidden) is added to both rows; guidance joins them after the final norm; `gumbel` (K,) draws."""
        entering = Sum(hidden, shared)
        for layer in self.mlp_stack[:-1]:
            entering = layer.after(entering)
        if cuda.available() and entering.y is not None:
            last = {"norm": self.mlp_stack[-1], "keeps_normed": True}
            x, projected = fused_after(entering.x, entering.y, entering.post, self._projections, **last)
            inputs = (x, projected, self.proj_mus.weight, self.low_mat, gumbel)
            return cuda.mixture(*inputs, max(self._top_p, SMALLEST_TOP_P), self._guidance, self._min_log_std)
        x = self._guided @ entering.normed(self.mlp_stack[-1])
        logits, other, log_std = self._projections.split(self._projections(x).squeeze(0))
        component = draw_from_nucleus(logits, gumbel, self._top_p)
        mean = (x @ self._into_rank[component] @ self._into_latent[component]).squeeze(0)
        log_std = mx.maximum(log_std, self._min_log_std)
        return mean * mx.exp(log_std) + other, log_std
