"""The mixture head: the nucleus, the draw, and its equations written out in NumPy."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

from tests.models import normal, randomised, weights_of
from voicechat_mlx.config import CharacterEncoderConfig, MogHeadConfig, TtsConfig
from voicechat_mlx.talker.mog_head import MogHead, draw_from_nucleus

COMPONENTS, WIDTH, LATENT, RANK = 9, 8, 6, 3
CONFIG = TtsConfig(
    hidden_size=WIDTH,
    latent_size=LATENT,
    guidance_scale=0.2,
    top_p=0.8,
    character_encoder=CharacterEncoderConfig(hidden_size=WIDTH),
    mog_head=MogHeadConfig(intermediate_size=10, low_rank=RANK, num_predictions=COMPONENTS, min_log_std=-0.5),
)
CLOSE = {"rtol": 5e-5, "atol": 5e-5}
"""float32 against float64 through three layers and norms."""


def nucleus(probabilities: list[float], top_p: float) -> set[int]:
    """The components that some draw can pick: a Gumbel number of 1000 picks its component if it may."""
    logits = mx.log(mx.array(probabilities))
    picks = [
        draw_from_nucleus(logits, 1000.0 * (mx.arange(len(probabilities)) == k), top_p) for k in range(len(logits))
    ]
    return {k for k, picked in enumerate(picks) if picked.item() == k}


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def offset_norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * (weight + 1)


@pytest.mark.parametrize("top_p", [0.0, 1e-30, 1e-9, 0.05, 0.4])
def test_top_p_keeps_at_least_the_largest_logit(top_p: float) -> None:
    assert nucleus([0.1, 0.4, 0.3, 0.2], top_p) == {1}


def test_four_equal_logits_at_half_keep_two() -> None:
    assert len(nucleus([0.25] * 4, 0.5)) == 2


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.39, {1}), (0.41, {1, 2}), (0.69, {1, 2}), (0.71, {1, 2, 3}), (0.89, {1, 2, 3}), (0.91, {0, 1, 2, 3})],
)
def test_a_component_stays_while_the_mass_strictly_above_it_is_below_p(top_p: float, kept: set[int]) -> None:
    """Sorted 0.4, 0.3, 0.2, 0.1: the masses above are 0, 0.4, 0.7, 0.9."""
    assert nucleus([0.1, 0.4, 0.3, 0.2], top_p) == kept


@pytest.mark.parametrize("top_p", [1.0, 1.5, math.inf])
def test_p_of_one_and_more_keeps_everything(top_p: float) -> None:
    assert nucleus([0.1, 0.4, 0.3, 0.2], top_p) == {0, 1, 2, 3}
    assert nucleus([1.0], top_p) == {0}


def test_one_certain_component_is_always_drawn() -> None:
    logits = mx.array([-200.0, 300.0, -200.0])
    for seed in range(5):
        gumbel = mx.random.gumbel((3,), key=mx.random.key(seed))
        assert draw_from_nucleus(logits, gumbel, 1.0).item() == 1


def test_draws_follow_the_probabilities() -> None:
    """2000 draws from 0.5, 0.3, 0.2: each share within five standard deviations, √(p (1 - p) / 2000)."""
    probabilities = np.array([0.3, 0.5, 0.2])
    gumbel = np.random.default_rng(0).gumbel(size=(2000, 3)).astype(np.float32)
    logits = mx.log(mx.array(probabilities.astype(np.float32)))
    picks = [draw_from_nucleus(logits, mx.array(row), 1.0) for row in gumbel]
    shares = np.bincount(np.asarray(mx.stack(picks)), minlength=3) / 2000
    assert np.all(np.abs(shares - probabilities) < 5 * np.sqrt(probabilities * (1 - probabilities) / 2000))


def test_the_head_gives_one_mean_and_one_log_scale_and_both_are_finite() -> None:
    head = randomised(MogHead(CONFIG))
    for scale in (0.0, 1.0, 1e4):
        mean, log_std = head(scale * normal(2, WIDTH), normal(COMPONENTS))
        assert mean.shape == (LATENT,)
        assert log_std.shape == (1,)
        assert np.isfinite(np.asarray(mean)).all()
        assert log_std.item() >= -0.5


def test_low_mat_is_components_by_latent_by_rank() -> None:
    head = MogHead(CONFIG)
    assert head.low_mat.shape == (COMPONENTS, LATENT, RANK)
    assert head.proj_mus.weight.shape == (COMPONENTS * RANK, WIDTH)


@pytest.mark.parametrize("seed", range(6))
def test_the_head_equals_its_equations(seed: int) -> None:
    """Guidance after the final norm, component by Gumbel-max, mu = low_mat[c] (proj_mus[c] x), scaled and shifted."""
    head = randomised(MogHead(CONFIG), seed=seed)
    rows, gumbel = normal(2, WIDTH, seed=seed), normal(COMPONENTS, seed=seed)
    w, x = weights_of(head), np.asarray(rows, np.float64)
    for layer in (f"mlp_stack.{index}" for index in range(3)):
        normed = offset_norm(x, w[f"{layer}.pre_norm.weight"])
        gated = gelu_tanh(normed @ w[f"{layer}.mlp.gate_proj.weight"].T) * (normed @ w[f"{layer}.mlp.up_proj.weight"].T)
        x = x + offset_norm(gated @ w[f"{layer}.mlp.down_proj.weight"].T, w[f"{layer}.post_norm.weight"])
    x = offset_norm(x, w["mlp_stack.3.weight"])
    x = x[0] + 0.2 * (x[0] - x[1])
    logits = w["proj_logits.weight"] @ x
    probabilities = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    above = np.array([probabilities[probabilities > p].sum() for p in probabilities])
    scores = np.where(above < 0.8, np.log(probabilities) + np.asarray(gumbel, np.float64), -np.inf)
    component = int(scores.argmax())
    mu = w["low_mat"][component] @ (w["proj_mus.weight"].reshape(COMPONENTS, RANK, WIDTH)[component] @ x)
    log_std = np.maximum(w["proj_logs.weight"] @ x, -0.5)
    mean, found_log_std = head(rows, gumbel)
    np.testing.assert_allclose(found_log_std, log_std, **CLOSE)
    np.testing.assert_allclose(mean, mu * np.exp(log_std) + w["proj_else.weight"] @ x, **CLOSE)
