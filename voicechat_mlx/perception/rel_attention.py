"""Self-attention with relative positions over a sliding window of left_context + 1 frames (Transformer-XL form).

score(i, j) = ((q_i + u) · k_j + (q_i + v) · p_{i-j}) / √head_dim for 0 ≤ i - j ≤ left_context.
Unusual: the window never changes, so `linear_pos` of its left_context + 1 positions is computed once per model
instead of once per call, and the keys that a frame sees are always the cache plus the new frames.
"""

from __future__ import annotations

from typing import cast

import mlx.core as mx
import numpy as np
from mlx import nn

from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.attention import merge_heads, split_heads
from voicechat_mlx.nn.cache import Cache, Tail, Timeline
from voicechat_mlx.nn.fused import fused
from voicechat_mlx.nn.linear import LinearGroup


def sinusoids(distances: int, d_model: int) -> mx.array:
    """Position vectors of distances 0 … distances - 1, sine in even columns and cosine in odd: (distances, d_model)."""
    rates = np.exp(np.arange(0, d_model, 2, dtype=np.float32) * -(np.log(10000.0) / d_model))
    angles = np.arange(distances, dtype=np.float32)[:, None] * rates
    return mx.array(np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(distances, d_model).astype(np.float32))


class RelPosCache(Cache):
    """Keys and values of the last left_context frames; the timeline tells how many of them are real.

    The layers of an encoder share one timeline; whoever runs them moves it (`end_step`).
    """

    def __init__(
        self, batch: int, left_context: int, d_model: int, dtype: mx.Dtype, timeline: Timeline | None = None
    ) -> None:
        self.keys = Tail(batch, left_context, d_model, dtype=dtype)
        self.values = Tail(batch, left_context, d_model, dtype=dtype)
        self.timeline = timeline or Timeline()


def shear(by_distance: mx.array) -> mx.array:
    """(B, H, T, W), column c for key i + c of query i → (B, H, T, W - 1 + T), column j for key j.

    Padding each row by T and reading the same numbers with rows one shorter moves row i right by i places.
    """
    batch, heads, steps, width = by_distance.shape
    if steps == 1:
        return by_distance
    padded = mx.pad(by_distance, [(0, 0), (0, 0), (0, 0), (0, steps)])
    flat = padded.reshape(batch, heads, -1)[..., : steps * (width - 1 + steps)]
    return flat.reshape(batch, heads, steps, width - 1 + steps)


class RelPosMultiHeadAttention(nn.Module):
    """(B, T, d_model) → (B, T, d_model)."""

    def __init__(self, d_model: int, n_heads: int, left_context: int) -> None:
        super().__init__()
        self._heads, self._left = n_heads, left_context
        self._scale = (d_model // n_heads) ** -0.5
        self.linear_q = nn.Linear(d_model, d_model, bias=False)
        self.linear_k = nn.Linear(d_model, d_model, bias=False)
        self.linear_v = nn.Linear(d_model, d_model, bias=False)
        self.linear_pos = nn.Linear(d_model, d_model, bias=False)
        self.linear_out = nn.Linear(d_model, d_model, bias=False)
        self.pos_bias_u = mx.zeros((n_heads, d_model // n_heads))
        self.pos_bias_v = mx.zeros((n_heads, d_model // n_heads))
        self._qkv = LinearGroup(self, "linear_q", "linear_k", "linear_v")

    def prepare(self) -> None:
        """Project the window's positions, farthest first, (H, left_context + 1, head_dim), and join the projections."""
        d_model = self.pos_bias_u.size
        table = sinusoids(self._left + 1, d_model)[::-1].astype(self.pos_bias_u.dtype)
        self._positions = mx.contiguous(split_heads(self.linear_pos(table[None]), self._heads)[0])
        self._qkv.join()

    def make_cache(self, batch: int, dtype: mx.Dtype, timeline: Timeline | None = None) -> RelPosCache:
        """An empty window."""
        return RelPosCache(batch, self._left, self.pos_bias_u.size, dtype, timeline)

    def __call__(
        self,
        x: mx.array,
        cache: RelPosCache | None = None,
        *,
        mask: mx.array | None = None,
        norm: nn.Module | None = None,
        residual: mx.array | None = None,
    ) -> mx.array:
        """residual + attention(norm(x)): each frame attends to itself and the left_context frames before it.

        `mask` is `self.mask(T, cache.timeline.offset)`, and may come from another layer.
        """
        cache = cache or self.make_cache(x.shape[0], x.dtype)
        context = self._attend(fused(x, self._qkv, norm=norm), cache, mask)
        return fused(context, self.linear_out, residual=residual)

    def _attend(self, qkv: mx.array, cache: RelPosCache, mask: mx.array | None) -> mx.array:
        steps = qkv.shape[1]
        if cuda.available() and qkv.shape[:2] == (1, 1) and self._left:
            tails, biases = (cache.keys.steps, cache.values.steps), (self.pos_bias_u, self.pos_bias_v)
            context, keys, values = cuda.rel_attention(qkv, tails, self._positions, biases, cache.timeline.count)
            cuda.keep(keys, cache.keys, "steps")
            cuda.keep(values, cache.values, "steps")
            return cast(mx.array, context)
        q, k, v = self._qkv.split(cuda.settled(qkv))
        keys, values = cache.keys.extend(k), cache.values.extend(v)
        q, k, v = (split_heads(part, self._heads) for part in (q, keys, values))
        by_distance = (q + self.pos_bias_v[:, None]) @ self._positions.swapaxes(-1, -2)
        mask = self.mask(steps, cache.timeline.offset) if mask is None else mask
        bias = mx.where(mask, shear(by_distance) * self._scale, -1e30)
        q = q + self.pos_bias_u[:, None]
        context = mx.fast.scaled_dot_product_attention(q, k, v, scale=self._scale, mask=bias.astype(q.dtype))
        return merge_heads(context)

    def mask(self, steps: int, seen: mx.array) -> mx.array:
        """Key column j is frame j - left_context from the first new one; before the first `seen` is not real."""
        columns = mx.arange(self._left + steps)[None]
        distance = self._left + mx.arange(steps)[:, None] - columns
        return (distance >= 0) & (distance <= self._left) & (columns >= self._left - seen)
