"""The talker's transformer: Gemma-3 style blocks, four norms each, sliding windows with a global layer every sixth.

Inputs are injected embeddings, not scaled; there is no token embedding and no head.
Unusual: attention scale is query_pre_attn_scalar^-0.5, not head_dim^-0.5. Source: Gemma 3 report, 2025.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from mlx import nn

from voicechat_mlx.config import TtsConfig
from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.activations import gelu_tanh
from voicechat_mlx.nn.attention import attend, split_heads
from voicechat_mlx.nn.cache import Cache, KVCache, Timeline, begin_step, end_step
from voicechat_mlx.nn.linear import Linear, LinearGroup
from voicechat_mlx.nn.norms import OffsetRMSNorm, add_norm


class BackboneCache(Cache):
    """One key/value cache per layer."""

    def __init__(self, layers: list[KVCache]) -> None:
        self.layers = layers


class GatedMlp(nn.Module):
    """down_proj(gelu_tanh(gate_proj(x)) · up_proj(x))."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden, intermediate, bias=False)
        self.up_proj = Linear(hidden, intermediate, bias=False)
        self.down_proj = Linear(intermediate, hidden, bias=False)
        self._gate_up: LinearGroup | None = None

    def prepare(self) -> None:
        """Join the two projections of the input."""
        self._gate_up = LinearGroup([self.gate_proj, self.up_proj])

    def __call__(self, x: mx.array) -> mx.array:
        """(…, hidden) → the same shape."""
        gate, up = self._gate_up(x) if self._gate_up else (self.gate_proj(x), self.up_proj(x))
        return self.down_proj(gelu_tanh(gate) * up)


class TalkerAttention(nn.Module):
    """q and k are normed (offset norms) before rotation of half-planes; global and sliding layers differ in base."""

    def __init__(self, config: TtsConfig, *, is_global: bool) -> None:
        super().__init__()
        self._heads, self._kv_heads, self._head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self._scale = config.query_pre_attn_scalar**-0.5
        self._base = config.rope_global_base_freq if is_global else config.rope_local_base_freq
        self._window = None if is_global else config.sliding_window
        hidden = config.hidden_size
        self.q_proj = Linear(hidden, self._heads * self._head_dim, bias=False)
        self.k_proj = Linear(hidden, self._kv_heads * self._head_dim, bias=False)
        self.v_proj = Linear(hidden, self._kv_heads * self._head_dim, bias=False)
        self.o_proj = Linear(self._heads * self._head_dim, hidden, bias=False)
        self.q_norm = OffsetRMSNorm(self._head_dim, config.rms_norm_eps)
        self.k_norm = OffsetRMSNorm(self._head_dim, config.rms_norm_eps)
        self._qkv: LinearGroup | None = None

    def prepare(self) -> None:
        """Join the three projections of the input; lay out what the joined norm and rotation of one frame needs."""
        self._qkv = LinearGroup([self.q_proj, self.k_proj, self.v_proj])
        rates = self._base ** -(np.arange(0, self._head_dim, 2) / self._head_dim)
        self._constants = mx.array(np.append(rates, self.q_norm.eps).astype(np.float32))
        self._q_scale = (self.q_norm.weight + 1.0) * self._scale
        self._k_scale = self.k_norm.weight + 1.0

    def make_cache(self, batch: int, dtype: mx.Dtype, timeline: Timeline) -> KVCache:
        """A window of frames, or all of them on a global layer."""
        return KVCache(batch, self._kv_heads, self._head_dim, self._window, dtype, timeline)

    def __call__(self, x: mx.array, cache: KVCache, mask: mx.array) -> mx.array:
        """(B, T, hidden) → the same shape; `mask` is `cache.mask(T)`."""
        if cuda.available() and x.shape[1] == 1 and self._qkv and self._qkv.is_joined:
            return self.o_proj(self._one_frame(self._qkv.joined(x), cache))
        q, k, v = self._qkv(x) if self._qkv else (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        q = self._rotate(self.q_norm(split_heads(q, self._heads)), cache.offset)
        k = self._rotate(self.k_norm(split_heads(k, self._kv_heads)), cache.offset)
        v = split_heads(v, self._kv_heads)
        return self.o_proj(attend(q, k, v, cache, scale=self._scale, mask=mask))

    def _one_frame(self, qkv: mx.array, cache: KVCache) -> mx.array:
        """The same for T = 1 in few launches: (B, 1, (H + 2·Hk)·D) → (B, 1, H·D)."""
        scales = (self._q_scale, self._k_scale, self._constants)
        q, k, v = cuda.norm_rotate(qkv, *scales, cache.offset, heads=self._heads, kv_heads=self._kv_heads)
        return cuda.decode_attention(q, *cache.update(k, v), cache.offset)

    def _rotate(self, x: mx.array, offset: mx.array) -> mx.array:
        return mx.fast.rope(x, self._head_dim, traditional=False, base=self._base, scale=1.0, offset=offset)


class TalkerBlock(nn.Module):
    """x + post(attn(pre(x))), then x + post(mlp(pre(x)))."""

    def __init__(self, config: TtsConfig, *, is_global: bool) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = OffsetRMSNorm(hidden, eps)
        self.self_attn = TalkerAttention(config, is_global=is_global)
        self.post_attention_layernorm = OffsetRMSNorm(hidden, eps)
        self.pre_feedforward_layernorm = OffsetRMSNorm(hidden, eps)
        self.mlp = GatedMlp(hidden, config.intermediate_size)
        self.post_feedforward_layernorm = OffsetRMSNorm(hidden, eps)

    def __call__(self, x: mx.array, cache: KVCache, mask: mx.array) -> mx.array:
        """(B, T, hidden) → the same shape."""
        heard = self.self_attn(self.input_layernorm(x), cache, mask)
        x, normed = add_norm(x, heard, self.post_attention_layernorm, self.pre_feedforward_layernorm)
        return add_norm(x, self.mlp(normed), self.post_feedforward_layernorm)[0]


class TalkerBackbone(nn.Module):
    """(B, T, hidden) → (B, T, hidden), after the final norm."""

    def __init__(self, config: TtsConfig) -> None:
        super().__init__()
        every = config.sliding_window_pattern
        self.layers = [TalkerBlock(config, is_global=(i + 1) % every == 0) for i in range(config.num_hidden_layers)]
        self.norm = OffsetRMSNorm(config.hidden_size, config.rms_norm_eps)

    def make_cache(self, batch: int, dtype: mx.Dtype) -> BackboneCache:
        """The beginning of a voice."""
        timeline = Timeline()
        return BackboneCache([layer.self_attn.make_cache(batch, dtype, timeline) for layer in self.layers])

    def __call__(self, x: mx.array, cache: BackboneCache | None = None) -> mx.array:
        """Advance by T frames, from the beginning when there is no cache."""
        cache = cache or self.make_cache(x.shape[0], x.dtype)
        steps = x.shape[1]
        begin_step(cache, steps)
        windows = {entry.window: entry for entry in cache.layers}
        masks = {window: entry.mask(steps) for window, entry in windows.items()}
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            x = layer(x, layer_cache, masks[layer_cache.window])
        end_step(cache, steps)
        return self.norm(x)
