"""The one causal self-attention over a key/value cache that the language model and the talker share."""

from __future__ import annotations

import mlx.core as mx

from voicechat_mlx.nn.cache import KVCache


def split_heads(x: mx.array, heads: int) -> mx.array:
    """(B, T, H·D) → (B, H, T, D)."""
    batch, steps, _ = x.shape
    return x.reshape(batch, steps, heads, -1).transpose(0, 2, 1, 3)


def merge_heads(x: mx.array) -> mx.array:
    """(B, H, T, D) → (B, T, H·D)."""
    batch, _, steps, _ = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, steps, -1)


def attend(
    queries: mx.array, keys: mx.array, values: mx.array, cache: KVCache, *, scale: float, mask: mx.array
) -> mx.array:
    """softmax(q kᵀ · scale) v over the cache and the new frames: (B, H, T, D) each → (B, T, H·D).

    Fewer key heads than query heads share keys in order (grouped-query attention). `mask` is `cache.mask(T)`,
    taken before the update and shared by every layer with the same window.
    """
    seen_keys, seen_values = cache.update(keys, values)
    context = mx.fast.scaled_dot_product_attention(queries, seen_keys, seen_values, scale=scale, mask=mask)
    return merge_heads(context)
