"""Grouped-query attention without any positional encoding: the Mamba layers around it carry the order."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from voicechat_mlx.config import TextConfig
from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.attention import attend, split_heads
from voicechat_mlx.nn.cache import KVCache, Timeline
from voicechat_mlx.nn.fused import fused
from voicechat_mlx.nn.linear import LinearGroup


class Attention(nn.Module):
    """(B, T, hidden) → (B, T, hidden), scale head_dim^-0.5."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self._heads, self._kv_heads, self._head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        hidden = config.hidden_size
        self.q_proj = nn.Linear(hidden, self._heads * self._head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, self._kv_heads * self._head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self._kv_heads * self._head_dim, bias=False)
        self.o_proj = nn.Linear(self._heads * self._head_dim, hidden, bias=False)
        self._qkv = LinearGroup(self, "q_proj", "k_proj", "v_proj")

    def prepare(self) -> None:
        """Join the three projections of the input."""
        self._qkv.join()

    def make_cache(self, batch: int, dtype: mx.Dtype, timeline: Timeline) -> KVCache:
        """Every earlier position stays visible."""
        return KVCache(batch, self._kv_heads, self._head_dim, None, dtype, timeline)

    def __call__(
        self,
        x: mx.array,
        cache: KVCache,
        mask: mx.array,
        *,
        norm: nn.Module | None = None,
        residual: mx.array | None = None,
    ) -> mx.array:
        """Advance by T positions: residual + attention(norm(x)); `mask` is `cache.mask(T)`."""
        qkv = fused(x, self._qkv, norm=norm)
        return fused(self._attend(qkv, cache, mask), self.o_proj, residual=residual)

    def _attend(self, qkv: mx.array, cache: KVCache, mask: mx.array) -> mx.array:
        scale = self._head_dim**-0.5
        if cuda.available() and qkv.shape[1] == 1:
            past, keeps = (cache.keys, cache.values, cache.timeline.count), cache.keeps_beginning
            return cuda.attend(qkv, *past, heads=self._heads, scale=scale, keeps=keeps)
        q, k, v = self._qkv.split(cuda.settled(qkv))
        q, k, v = split_heads(q, self._heads), split_heads(k, self._kv_heads), split_heads(v, self._kv_heads)
        return attend(q, k, v, cache, scale=scale, mask=mask)
