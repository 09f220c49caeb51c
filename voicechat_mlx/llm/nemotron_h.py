"""Nemotron-H: pre-norm residual blocks of three kinds, laid out by a pattern of letters (M, * and -).

It has no token embedding and no head of its own: VoiceChat feeds fused embeddings and owns both heads.
Source: NVIDIA 2025 (Nemotron-H), Nemotron Nano 2.
"""

from __future__ import annotations

from typing import Any, cast

import mlx.core as mx
from mlx import nn

from voicechat_mlx.config import TextConfig
from voicechat_mlx.llm.attention import Attention
from voicechat_mlx.llm.mamba import Mamba2Mixer
from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.activations import relu_squared
from voicechat_mlx.nn.cache import Cache, KVCache, Timeline, begin_step, end_step
from voicechat_mlx.nn.fused import fused
from voicechat_mlx.nn.norms import RMSNorm


class LayersCache(Cache):
    """One cache per layer; MLP layers have none, so their place holds an empty `Cache`."""

    def __init__(self, layers: list[Any]) -> None:
        self.layers = layers


class Mlp(nn.Module):
    """down_proj(relu(up_proj(x))²)."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def __call__(self, x: mx.array, *, norm: nn.Module | None = None, residual: mx.array | None = None) -> mx.array:
        """residual + mlp(norm(x)): (B, T, hidden) → the same shape."""
        return fused(fused(x, self.up_proj, norm=norm, activation=relu_squared), self.down_proj, residual=residual)


class Block(nn.Module):
    """x + mixer(norm(x)), the mixer chosen by one letter of the pattern."""

    def __init__(self, config: TextConfig, letter: str) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self._letter = letter
        self.mixer = {"M": Mamba2Mixer, "*": Attention, "-": Mlp}[letter](config)

    def make_cache(self, batch: int, dtype: mx.Dtype, timeline: Timeline) -> Cache:
        """What this kind of mixer remembers."""
        if self._letter == "M":
            return cast(Cache, self.mixer.make_cache(batch, dtype))
        return cast(Cache, self.mixer.make_cache(batch, dtype, timeline)) if self._letter == "*" else Cache()

    def __call__(self, x: mx.array, cache: Any, mask: mx.array | None) -> mx.array:
        """(B, T, hidden) → the same shape."""
        past = {"M": (cache,), "*": (cache, mask), "-": ()}[self._letter]
        return self.mixer(x, *past, norm=self.norm, residual=x)


class NemotronH(nn.Module):
    """Fused embeddings (B, T, hidden) → hidden states after `norm_f` (B, T, hidden)."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.layers = [Block(config, letter) for letter in config.hybrid_override_pattern]
        self.norm_f = RMSNorm(config.hidden_size, eps=config.layer_norm_epsilon)

    def make_cache(self, batch: int, dtype: mx.Dtype) -> LayersCache:
        """The beginning of a timeline."""
        timeline = Timeline()
        return LayersCache([layer.make_cache(batch, dtype, timeline) for layer in self.layers])

    def __call__(self, x: mx.array, cache: LayersCache | None = None) -> mx.array:
        """Advance by T positions, from the beginning when there is no cache."""
        cache = cache or self.make_cache(x.shape[0], x.dtype)
        steps = x.shape[1]
        begin_step(cache, steps)
        mask = next((entry.mask(steps) for entry in cache.layers if isinstance(entry, KVCache)), None)
        with cuda.chaining():
            for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
                x = layer(x, layer_cache, mask)
        end_step(cache, steps)
        return self.norm_f(cuda.settled(x))
