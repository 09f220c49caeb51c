"""The talker's transformer: Gemma-3 style blocks, four norms each, sliding windows with a global layer every sixth.

Inputs are injected embeddings, not scaled; there is no token embedding and no head.
Unusual: attention scale is query_pre_attn_scalar^-0.5, not head_dim^-0.5. Source: Gemma 3 report, 2025.
"""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx
import numpy as np
from mlx import nn

from voicechat_mlx.config import TtsConfig
from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.activations import geglu
from voicechat_mlx.nn.attention import attend, split_heads
from voicechat_mlx.nn.cache import Cache, KVCache, Timeline, begin_step, end_step
from voicechat_mlx.nn.fused import Activation, fused, fused_after
from voicechat_mlx.nn.linear import LinearGroup
from voicechat_mlx.nn.norms import OffsetRMSNorm, RmsScaling, add_norm


class Rotation(NamedTuple):
    """What rotates the frames of a step, the same on all layers with one base; both are (T, head_dim)."""

    cosine: mx.array
    sine: mx.array
    """Negative in the first half."""

    def __call__(self, x: mx.array) -> mx.array:
        """(B, H, T, head_dim): each number of the first half turns with its partner in the second."""
        low, high = mx.split(x, 2, axis=-1)
        turned = x * self.cosine + mx.concatenate([high, low], axis=-1) * self.sine
        return turned.astype(x.dtype)


class BackboneCache(Cache):
    """One key/value cache per layer."""

    def __init__(self, layers: list[KVCache]) -> None:
        self.layers = layers


class Sum(NamedTuple):
    """x + post(y), not yet added: the next block does that, with its norm and its product in one step.

    One row of y may serve all rows of x; without `post`, y is added as it is; without y, x is all.
    """

    x: mx.array
    y: mx.array | None = None
    post: OffsetRMSNorm | None = None

    def into(
        self, layer: LinearGroup, norm: OffsetRMSNorm, activation: Activation | None = None
    ) -> tuple[mx.array, mx.array]:
        """The sum, and activation(layer(norm(sum)))."""
        if self.y is None:
            return self.x, fused(self.x, layer, norm=norm, activation=activation)
        return fused_after(self.x, self.y, self.post, layer, norm=norm, activation=activation)

    def done(self) -> mx.array:
        """The sum itself."""
        x = cuda.settled(self.x)
        if self.y is None:
            return x
        y = cuda.settled(self.y)
        return x + (self.post(y) if self.post else y)

    def normed(self, norm: OffsetRMSNorm) -> mx.array:
        """The norm of the sum, which ends a stack of blocks."""
        if self.y is None or self.post is None:
            return norm(self.done())
        return add_norm(cuda.settled(self.x), cuda.settled(self.y), self.post, norm)


class GatedMlp(nn.Module):
    """down_proj(gelu_tanh(gate_proj(x)) · up_proj(x))."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)
        self._gate_up = LinearGroup(self, "gate_proj", "up_proj")

    def prepare(self) -> None:
        """Join the two projections of the input."""
        self._gate_up.join()

    def __call__(self, x: mx.array) -> mx.array:
        """(…, hidden) → the same shape."""
        return fused(fused(x, self._gate_up, activation=geglu), self.down_proj)

    def after(self, entering: Sum, norm: OffsetRMSNorm) -> tuple[mx.array, mx.array]:
        """The sum that enters, and mlp(norm(sum))."""
        x, gated = entering.into(self._gate_up, norm, geglu)
        return x, fused(gated, self.down_proj)


class TalkerAttention(nn.Module):
    """q and k are normed (offset norms) before rotation of half-planes; global and sliding layers differ in base."""

    def __init__(self, config: TtsConfig, *, is_global: bool) -> None:
        super().__init__()
        self._heads, self._kv_heads, self._head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.is_global = is_global
        """Layers of one kind see the same frames and rotate alike."""
        self._scale = config.query_pre_attn_scalar**-0.5
        self._base = config.rope_global_base_freq if is_global else config.rope_local_base_freq
        self._window = None if is_global else config.sliding_window
        hidden = config.hidden_size
        self.q_proj = nn.Linear(hidden, self._heads * self._head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, self._kv_heads * self._head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self._kv_heads * self._head_dim, bias=False)
        self.o_proj = nn.Linear(self._heads * self._head_dim, hidden, bias=False)
        self.q_norm = OffsetRMSNorm(self._head_dim, config.rms_norm_eps)
        self.k_norm = OffsetRMSNorm(self._head_dim, config.rms_norm_eps)
        self._qkv = LinearGroup(self, "q_proj", "k_proj", "v_proj")

    def prepare(self) -> None:
        """Join the three projections of the input and the weights of both norms; rotation rates, (head_dim / 2,)."""
        self._qkv.join()
        self._rates = mx.array((self._base ** -(np.arange(0, self._head_dim, 2) / self._head_dim)).astype(np.float32))
        norms = [self.q_norm] * self._heads + [self.k_norm] * self._kv_heads
        self._qk_norm = RmsScaling.of(mx.stack([norm.weight + 1.0 for norm in norms])[:, None], self.q_norm.eps)

    def make_cache(self, batch: int, dtype: mx.Dtype, timeline: Timeline) -> KVCache:
        """A window of frames, or all of them on a global layer."""
        return KVCache(batch, self._kv_heads, self._head_dim, self._window, dtype, timeline)

    def rotation(self, cache: KVCache, steps: int) -> Rotation:
        """Of the next `steps` frames."""
        angles = (cache.offset + mx.arange(steps))[:, None] * self._rates
        cosine, sine = mx.cos(angles), mx.sin(angles)
        return Rotation(mx.concatenate([cosine, cosine], axis=-1), mx.concatenate([-sine, sine], axis=-1))

    def __call__(self, x: mx.array, cache: KVCache, mask: mx.array, rotation: Rotation | None = None) -> mx.array:
        """(B, T, hidden) → the same shape; `mask` is `cache.mask(T)`, `rotation` may come from a layer alike."""
        return fused(self._attend(fused(x, self._qkv), cache, mask, rotation), self.o_proj)

    def after(
        self, entering: Sum, norm: OffsetRMSNorm, cache: KVCache, mask: mx.array, rotation: Rotation | None = None
    ) -> tuple[mx.array, mx.array]:
        """The sum that enters, and attention(norm(sum))."""
        x, qkv = entering.into(self._qkv, norm)
        return x, fused(self._attend(qkv, cache, mask, rotation), self.o_proj)

    def _attend(self, qkv: mx.array, cache: KVCache, mask: mx.array, rotation: Rotation | None) -> mx.array:
        """(B, T, (H + 2·Hk)·D) → (B, T, H·D)."""
        if cuda.available() and qkv.shape[1] == 1:
            past = cache.keys, cache.values, cache.timeline.count
            rates = self.q_norm.scale, self.k_norm.scale, self._rates, self.q_norm.eps
            options = {"heads": self._heads, "scale": self._scale, "keeps": cache.keeps_beginning}
            return cuda.attend(qkv, *past, **options, rotation=rates)
        rotation = rotation or self.rotation(cache, qkv.shape[1])
        heads = split_heads(cuda.settled(qkv), self._heads + 2 * self._kv_heads)
        qk, v = mx.split(heads, [self._heads + self._kv_heads], axis=1)
        q, k = mx.split(rotation(self._qk_norm(qk)), [self._heads], axis=1)
        return attend(q, k, v, cache, scale=self._scale, mask=mask)


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
        return self.after(Sum(x), cache, mask).done()

    def after(self, entering: Sum, cache: KVCache, mask: mx.array, rotation: Rotation | None = None) -> Sum:
        """The same between sums that are left to the next block."""
        x, heard = self.self_attn.after(entering, self.input_layernorm, cache, mask, rotation)
        middle = Sum(x, heard, self.post_attention_layernorm)
        return Sum(*self.mlp.after(middle, self.pre_feedforward_layernorm), self.post_feedforward_layernorm)


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
        shared: dict[bool, tuple[mx.array, Rotation]] = {}
        total = Sum(x)
        with cuda.chaining():
            for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
                attention = layer.self_attn
                if attention.is_global not in shared:
                    shared[attention.is_global] = layer_cache.mask(steps), attention.rotation(layer_cache, steps)
                total = layer.after(total, layer_cache, *shared[attention.is_global])
        end_step(cache, steps)
        return total.normed(self.norm)
