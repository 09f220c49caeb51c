"""The Mamba-2 mixer: a gated linear recurrence over a state of (heads, head_dim, state_size).

    S_t = exp(Δ_t A) S_{t-1} + Δ_t x_t ⊗ B_t        y_t = S_t C_t + D x_t

One step is the equation itself. Several steps at once (a system prompt) use its closed form over chunks, in which
every pair of positions inside a chunk meets once. The recurrence is float32 whatever the activations are.
Source: Dao and Gu 2024 (state space duality).
"""

from __future__ import annotations

import math
from typing import cast

import mlx.core as mx
from mlx import nn

from voicechat_mlx.config import TextConfig
from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.activations import silu, softplus
from voicechat_mlx.nn.cache import Cache, Tail
from voicechat_mlx.nn.conv import DepthwiseConv1d
from voicechat_mlx.nn.fused import fused
from voicechat_mlx.nn.norms import GroupedRMSNorm

CHUNK = 64
"""Positions per closed-form chunk; memory grows with its square."""


class MambaCache(Cache):
    """The convolution's last inputs and the recurrent state (B, heads, head_dim, state_size)."""

    def __init__(self, conv: Tail, state: mx.array) -> None:
        self.conv = conv
        self.state = state


class Mamba2Mixer(nn.Module):
    """(B, T, hidden) → (B, T, hidden)."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self._heads, self._head_dim = config.mamba_num_heads, config.mamba_head_dim
        self._groups, self._state_size = config.n_groups, config.ssm_state_size
        self._width, self._conv_width = config.mamba_width, config.mamba_conv_width
        self._dt_limits = config.time_step_limit
        self._limited = config.time_step_limit[0] > 0.0 or config.time_step_limit[1] < math.inf
        self.in_proj = nn.Linear(config.hidden_size, self._width + self._conv_width + self._heads, bias=False)
        self.conv1d = DepthwiseConv1d(self._conv_width, config.conv_kernel, bias=True, with_silu=True)
        self.A_log = mx.zeros((self._heads,))
        self.D = mx.ones((self._heads,))
        self.dt_bias = mx.zeros((self._heads,))
        self.norm = GroupedRMSNorm(self._width, config.n_groups, config.layer_norm_epsilon)
        self.out_proj = nn.Linear(self._width, config.hidden_size, bias=False)
        self.prepare()

    def prepare(self) -> None:
        """A = -exp(A_log)."""
        self._decay = -mx.exp(self.A_log.astype(mx.float32))

    def make_cache(self, batch: int, dtype: mx.Dtype) -> MambaCache:
        """A zero state."""
        state = mx.zeros((batch, self._heads, self._head_dim, self._state_size), dtype=mx.float32)
        return MambaCache(self.conv1d.make_cache(batch, dtype), state)

    def __call__(
        self, u: mx.array, cache: MambaCache, *, norm: nn.Module | None = None, residual: mx.array | None = None
    ) -> mx.array:
        """Advance by T positions: residual + mixer(norm(u))."""
        projected = fused(u, self.in_proj, norm=norm)
        one_frame = u.shape[:2] == (1, 1) and not self._limited
        on_gpu = cuda.available() and one_frame
        gated = self._frame(projected, cache) if on_gpu else self._steps(cuda.settled(projected), cache)
        return fused(gated, self.out_proj, norm=self.norm, residual=residual)

    def _frame(self, projected: mx.array, cache: MambaCache) -> mx.array:
        """T = 1 in one step."""
        weights = (self.conv1d.taps, self.conv1d.bias, self._decay, self.D, self.dt_bias)
        gated, moved, state = cuda.mamba_frame(projected, cache.conv.steps, *weights, cache.state, groups=self._groups)
        cuda.keep(moved, cache.conv, "steps")
        cuda.keep(state, cache, "state")
        return cast(mx.array, gated)

    def _steps(self, projected: mx.array, cache: MambaCache) -> mx.array:
        """(B, T, z | x, B, C | dt) → y · silu(z), (B, T, width)."""
        batch, steps, _ = projected.shape
        z, xbc, dt = mx.split(projected, [self._width, self._width + self._conv_width], axis=-1)
        xbc = cuda.settled(self.conv1d(xbc, cache.conv)).astype(mx.float32)
        shared = self._groups * self._state_size
        x, b, c = mx.split(xbc, [self._width, self._width + shared], axis=-1)
        x = x.reshape(batch, steps, self._heads, self._head_dim)
        b = b.reshape(batch, steps, self._groups, self._state_size)
        c = c.reshape(batch, steps, self._groups, self._state_size)
        dt = softplus(dt.astype(mx.float32) + self.dt_bias)
        if self._limited:
            dt = mx.clip(dt, *self._dt_limits)
        y = self._scan(x, b, c, dt, cache) + self.D[:, None] * x
        return y.reshape(batch, steps, self._width).astype(z.dtype) * silu(z)

    def _scan(self, x: mx.array, b: mx.array, c: mx.array, dt: mx.array, cache: MambaCache) -> mx.array:
        if x.shape[1] == 1:
            return self._step(x, b, c, dt, cache)
        parts = []
        for begin in range(0, x.shape[1], CHUNK):
            now = slice(begin, begin + CHUNK)
            parts.append(self._chunk(x[:, now], b[:, now], c[:, now], dt[:, now], cache))
        return mx.concatenate(parts, axis=1)

    def _per_head(self, shared: mx.array) -> mx.array:
        """(…, groups, N) → (…, heads, N): neighbouring heads share a group."""
        return mx.repeat(shared, self._heads // self._groups, axis=-2)

    def _step(self, x: mx.array, b: mx.array, c: mx.array, dt: mx.array, cache: MambaCache) -> mx.array:
        """The recurrence itself, T = 1."""
        dt_now = dt[:, 0, :, None, None]
        input_now = (dt[:, 0, :, None] * x[:, 0])[..., None] * self._per_head(b[:, 0])[:, :, None]
        cache.state = mx.exp(dt_now * self._decay[:, None, None]) * cache.state + input_now
        return (cache.state @ self._per_head(c[:, 0])[..., None])[..., 0][:, None]

    def _chunk(self, x: mx.array, b: mx.array, c: mx.array, dt: mx.array, cache: MambaCache) -> mx.array:
        """L positions at once: y_i = Σ_{j ≤ i} (C_i·B_j) exp(s_i - s_j) Δ_j x_j + exp(s_i) S C_i, s = cumsum(Δ A)."""
        steps = x.shape[1]
        decay = mx.cumsum(dt * self._decay, axis=1).transpose(0, 2, 1)
        b, c = (self._per_head(part).transpose(0, 2, 1, 3) for part in (b, c))
        weighted = (dt[..., None] * x).transpose(0, 2, 1, 3)
        causal = mx.tril(mx.ones((steps, steps), dtype=mx.bool_))
        between = mx.exp(mx.where(causal, decay[..., :, None] - decay[..., None, :], -mx.inf))
        inside = ((c @ b.swapaxes(-1, -2)) * between) @ weighted
        before = mx.exp(decay)[..., None] * (c @ cache.state.swapaxes(-1, -2))
        to_end = mx.exp(decay[..., -1:] - decay)[..., None]
        cache.state = mx.exp(decay[..., -1])[..., None, None] * cache.state + (to_end * weighted).swapaxes(-1, -2) @ b
        return (inside + before).transpose(0, 2, 1, 3)
