"""The Mamba-2 mixer: its closed form over chunks and its single step against the recurrence written out in NumPy."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tests.models import normal, randomised, weights_of
from voicechat_mlx.config import TextConfig
from voicechat_mlx.llm.mamba import CHUNK, Mamba2Mixer

CLOSE = {"rtol": 1e-4, "atol": 2e-5}
"""float32 against float64: the closed form subtracts cumulative sums, so 130 steps cost a digit or two."""


def config(**changes: object) -> TextConfig:
    sizes: dict[str, object] = {
        "hidden_size": 10,
        "mamba_num_heads": 6,
        "mamba_head_dim": 4,
        "ssm_state_size": 5,
        "n_groups": 2,
        "conv_kernel": 4,
    }
    return TextConfig(**{**sizes, **changes})


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def recurrence(mixer: Mamba2Mixer, settings: TextConfig, u: np.ndarray) -> np.ndarray:
    """(T, hidden) → (T, hidden), one position after the other: S = exp(Δ A) S + Δ x ⊗ B, y = S C + D x."""
    w = weights_of(mixer)
    heads, size, groups = settings.mamba_num_heads, settings.mamba_head_dim, settings.n_groups
    state_size, kernel = settings.ssm_state_size, settings.conv_kernel
    inner = heads * size
    state, history = np.zeros((heads, size, state_size)), np.zeros((kernel, inner + 2 * groups * state_size))
    out = []
    for row in u:
        projected = w["in_proj.weight"] @ row
        z, xbc, dt = np.split(projected, [inner, len(projected) - heads])
        history = np.concatenate([history[1:], [xbc]])
        mixed = silu((history * w["conv1d.weight"][:, :, 0].T).sum(axis=0) + w["conv1d.bias"])
        x, b, c = np.split(mixed, [inner, inner + groups * state_size])
        delta = np.clip(np.log1p(np.exp(dt + w["dt_bias"])), *settings.time_step_limit)
        y = np.zeros((heads, size))
        for head in range(heads):
            group = head // (heads // groups)
            b_head, c_head = (part.reshape(groups, state_size)[group] for part in (b, c))
            x_head = x.reshape(heads, size)[head]
            decay = np.exp(-delta[head] * np.exp(w["A_log"][head]))
            state[head] = decay * state[head] + delta[head] * np.outer(x_head, b_head)
            y[head] = state[head] @ c_head + w["D"][head] * x_head
        gated = (y.reshape(-1) * silu(z)).reshape(groups, -1)
        normed = gated / np.sqrt((gated**2).mean(axis=1, keepdims=True) + settings.layer_norm_epsilon)
        out.append(w["out_proj.weight"] @ (normed.reshape(-1) * w["norm.weight"]))
    return np.array(out)


@pytest.mark.parametrize("steps", [1, 2, 3, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 2])
def test_many_positions_at_once_equal_the_recurrence(steps: int) -> None:
    settings = config()
    mixer, u = randomised(Mamba2Mixer(settings), std=0.5), normal(1, steps, 10)
    expected = recurrence(mixer, settings, np.asarray(u[0], np.float64))
    np.testing.assert_allclose(mixer(u, mixer.make_cache(1, mx.float32))[0], expected, **CLOSE)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_groups": 1},
        {"n_groups": 6},
        {"mamba_num_heads": 3, "n_groups": 3},
        {"conv_kernel": 1},
        {"conv_kernel": 2},
        {"time_step_limit": (0.5, 0.9)},
        {"mamba_num_heads": 1, "n_groups": 1, "mamba_head_dim": 1, "ssm_state_size": 1},
    ],
    ids=str,
)
def test_sizes_and_limits_of_every_kind_equal_the_recurrence(changes: dict[str, object]) -> None:
    settings = config(**changes)
    mixer, u = randomised(Mamba2Mixer(settings), std=0.5), normal(1, 9, 10)
    expected = recurrence(mixer, settings, np.asarray(u[0], np.float64))
    np.testing.assert_allclose(mixer(u, mixer.make_cache(1, mx.float32))[0], expected, **CLOSE)


@pytest.mark.parametrize("cuts", [[1], list(range(1, 80)), [10, 11, 75], [64, 65]], ids=["1", "single", "odd", "chunk"])
def test_positions_in_pieces_equal_all_at_once(cuts: list[int]) -> None:
    mixer, u = randomised(Mamba2Mixer(config()), std=0.5), normal(2, 80, 10)
    whole = mixer.make_cache(2, mx.float32)
    expected = mixer(u, whole)
    cache = mixer.make_cache(2, mx.float32)
    pieces = [mixer(piece, cache) for piece in mx.split(u, cuts, axis=1)]
    np.testing.assert_allclose(mx.concatenate(pieces, axis=1), expected, **CLOSE)
    np.testing.assert_allclose(cache.state, whole.state, **CLOSE)
    np.testing.assert_allclose(cache.conv.steps, whole.conv.steps, **CLOSE)


@pytest.mark.parametrize("strength", [16.0, 150.0])
def test_a_strong_decay_over_a_whole_chunk_stays_finite_and_right(strength: float) -> None:
    """exp(s_i - s_j) for j > i would overflow, so those pairs are masked before the exponential.

    s reaches thousands, where float32 keeps four decimals: single elements lose digits, their mean square does not.
    """
    mixer, u = randomised(Mamba2Mixer(config()), std=0.5), normal(1, CHUNK, 10)
    mixer.A_log = mx.full((6,), float(np.log(strength)))
    mixer.prepare()
    out = np.asarray(mixer(u, mixer.make_cache(1, mx.float32)))[0]
    expected = recurrence(mixer, config(), np.asarray(u[0], np.float64))
    assert np.isfinite(out).all()
    assert np.sqrt(np.mean((out - expected) ** 2) / np.mean(expected**2)) < 2e-5


def test_the_state_stays_float32_under_bfloat16_activations() -> None:
    mixer = randomised(Mamba2Mixer(config()), std=0.5)
    mixer.set_dtype(mx.bfloat16)
    mixer.prepare()
    cache = mixer.make_cache(1, mx.bfloat16)
    for steps in (1, 3):
        assert mixer(normal(1, steps, 10).astype(mx.bfloat16), cache).dtype == mx.bfloat16
        assert cache.state.dtype == mx.float32
