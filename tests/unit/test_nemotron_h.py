"""The language model's stack: each kind of block by hand, and one step at a time against many at once."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tests.models import normal, randomised, weights_of
from voicechat_mlx.config import TextConfig
from voicechat_mlx.llm.nemotron_h import NemotronH
from voicechat_mlx.nn.cache import KV_BLOCK

WIDTH = 12
CLOSE = {"rtol": 1e-4, "atol": 5e-5}
"""float32 in another order through a few blocks."""


def make(pattern: str, **changes: int) -> NemotronH:
    sizes = {
        "hidden_size": WIDTH,
        "intermediate_size": 20,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 5,
        "mamba_num_heads": 4,
        "mamba_head_dim": 3,
        "ssm_state_size": 5,
        "n_groups": 2,
    }
    config = TextConfig(hybrid_override_pattern=pattern, num_hidden_layers=len(pattern), **{**sizes, **changes})
    return randomised(NemotronH(config), std=0.4)


def rms_norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * weight


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def test_an_mlp_block_squares_its_relu_and_the_final_norm_is_applied() -> None:
    llm, x = make("-"), normal(1, 3, WIDTH)
    w, rows = weights_of(llm), np.asarray(x, np.float64)
    inner = np.maximum(rms_norm(rows, w["layers.0.norm.weight"]) @ w["layers.0.mixer.up_proj.weight"].T, 0) ** 2
    expected = rms_norm(rows + inner @ w["layers.0.mixer.down_proj.weight"].T, w["norm_f.weight"])
    np.testing.assert_allclose(llm(x), expected, **CLOSE)


@pytest.mark.parametrize("key_heads", [1, 2, 3, 6])
def test_attention_is_grouped_causal_and_without_positions(key_heads: int) -> None:
    llm, x = make("*", num_key_value_heads=key_heads), normal(1, 7, WIDTH)
    w, rows = weights_of(llm), np.asarray(x[0], np.float64)
    normed = rms_norm(rows, w["layers.0.norm.weight"])

    def heads(letter: str, count: int) -> np.ndarray:
        return (normed @ w[f"layers.0.mixer.{letter}_proj.weight"].T).reshape(7, count, 5).transpose(1, 0, 2)

    q, k, v = heads("q", 6), heads("k", key_heads), heads("v", key_heads)
    context = []
    for head in range(6):
        shared = head // (6 // key_heads)
        scores = np.where(np.tri(7, dtype=bool), q[head] @ k[shared].T / np.sqrt(5), -np.inf)
        context.append(softmax(scores) @ v[shared])
    mixed = rows + np.concatenate(context, axis=1) @ w["layers.0.mixer.o_proj.weight"].T
    np.testing.assert_allclose(llm(x)[0], rms_norm(mixed, w["norm_f.weight"]), **CLOSE)


@pytest.mark.parametrize("pattern", ["M", "*", "-", "M-M*-M", "**MM", "M*" * 3])
def test_one_step_at_a_time_equals_many_at_once(pattern: str) -> None:
    llm, x = make(pattern), normal(1, 30, WIDTH)
    cache = llm.make_cache(1, mx.float32)
    steps = [llm(x[:, t : t + 1], cache) for t in range(30)]
    np.testing.assert_allclose(mx.concatenate(steps, axis=1), llm(x), **CLOSE)


@pytest.mark.parametrize("cuts", [[1, 2], [13, 14, 20], [29]], ids=str)
def test_a_prompt_at_once_and_frames_one_by_one_equal_all_at_once(cuts: list[int]) -> None:
    llm, x = make("M-M*-M"), normal(2, 30, WIDTH)
    cache = llm.make_cache(2, mx.float32)
    parts = [llm(part, cache) for part in mx.split(x, cuts, axis=1)]
    np.testing.assert_allclose(mx.concatenate(parts, axis=1), llm(x), **CLOSE)


def test_attention_remembers_across_the_growth_of_its_buffers() -> None:
    llm, x = make("*"), normal(1, KV_BLOCK + 5, WIDTH)
    cache = llm.make_cache(1, mx.float32)
    early = llm(x[:, : KV_BLOCK - 2], cache)
    late = [llm(x[:, t : t + 1], cache) for t in range(KV_BLOCK - 2, KV_BLOCK + 5)]
    np.testing.assert_allclose(mx.concatenate([early, *late], axis=1), llm(x), **CLOSE)


def test_two_attention_layers_share_a_mask_but_not_a_past() -> None:
    llm = make("**")
    cache = llm.make_cache(1, mx.float32)
    llm(normal(1, 3, WIDTH), cache)
    first, second = cache.layers
    assert first.position == second.position == 3
    assert not np.array_equal(first.keys[:, :, :3], second.keys[:, :, :3])
