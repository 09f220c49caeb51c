"""Norms with their equations written out."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from tests.models import normal, randomised, weights_of
from voicechat_mlx.nn.norms import GroupedRMSNorm, LayerNorm, OffsetRMSNorm, RMSNorm, RmsScaling

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def test_the_offset_norm_equals_an_rms_norm_with_weight_plus_one() -> None:
    norm, x = randomised(OffsetRMSNorm(8, 1e-6)), normal(2, 3, 8)
    np.testing.assert_allclose(norm(x), mx.fast.rms_norm(x, norm.weight + 1, 1e-6), **CLOSE)
    rows = np.asarray(x, np.float64)
    expected = rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + 1e-6) * (weights_of(norm)["weight"] + 1)
    np.testing.assert_allclose(norm(x), expected, **CLOSE)


def test_norms_equal_their_equations_in_few_steps_as_in_one() -> None:
    """float32 on a CPU goes by steps, float16 through MLX's own."""
    x = 3 * normal(2, 3, 8) + 1
    rows = np.asarray(x, np.float64)
    for norm, middle in ((RMSNorm(8, 1e-3), 0.0), (LayerNorm(8, 1e-3), rows.mean(axis=-1, keepdims=True))):
        w = weights_of(randomised(norm))
        centred = rows - middle
        expected = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-3) * w["weight"] + w.get("bias", 0)
        np.testing.assert_allclose(norm(x), expected, **CLOSE)
        np.testing.assert_allclose(norm(x.astype(mx.float16)), expected, rtol=5e-3, atol=5e-3)


def test_a_scaling_may_have_a_row_of_weights_for_each_head() -> None:
    weight, x = normal(3, 1, 4), normal(2, 3, 5, 4, seed=1)
    rows = np.asarray(x, np.float64)
    expected = rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + 1e-6) * np.asarray(weight, np.float64)
    np.testing.assert_allclose(RmsScaling.of(weight, 1e-6)(x), expected, rtol=1e-5, atol=1e-5)


def test_an_offset_norm_of_zeros_scales_by_one() -> None:
    """(3, 4) has the root mean square √12.5."""
    norm = OffsetRMSNorm(2, 0.0)
    np.testing.assert_allclose(norm(mx.array([3.0, 4.0])), [3 / 12.5**0.5, 4 / 12.5**0.5], **CLOSE)


def test_the_grouped_norm_looks_at_each_group_alone() -> None:
    norm, x = randomised(GroupedRMSNorm(6, 2, 1e-5)), normal(1, 4, 6)
    rows = np.asarray(x, np.float64)
    halves = [part / np.sqrt((part**2).mean(axis=-1, keepdims=True) + 1e-5) for part in (rows[..., :3], rows[..., 3:])]
    np.testing.assert_allclose(norm(x), np.concatenate(halves, axis=-1) * weights_of(norm)["weight"], **CLOSE)
