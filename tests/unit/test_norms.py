"""Norms with their equations written out."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from tests.models import normal, randomised, weights_of
from voicechat_mlx.nn.norms import GroupedRMSNorm, OffsetRMSNorm

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def test_the_offset_norm_equals_an_rms_norm_with_weight_plus_one() -> None:
    norm, x = randomised(OffsetRMSNorm(8, 1e-6)), normal(2, 3, 8)
    np.testing.assert_allclose(norm(x), mx.fast.rms_norm(x, norm.weight + 1, 1e-6), **CLOSE)
    rows = np.asarray(x, np.float64)
    expected = rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + 1e-6) * (weights_of(norm)["weight"] + 1)
    np.testing.assert_allclose(norm(x), expected, **CLOSE)


def test_an_offset_norm_of_zeros_scales_by_one() -> None:
    """(3, 4) has the root mean square √12.5."""
    norm = OffsetRMSNorm(2, 0.0)
    np.testing.assert_allclose(norm(mx.array([3.0, 4.0])), [3 / 12.5**0.5, 4 / 12.5**0.5], **CLOSE)


def test_the_grouped_norm_looks_at_each_group_alone() -> None:
    norm, x = randomised(GroupedRMSNorm(6, 2, 1e-5)), normal(1, 4, 6)
    rows = np.asarray(x, np.float64)
    halves = [part / np.sqrt((part**2).mean(axis=-1, keepdims=True) + 1e-5) for part in (rows[..., :3], rows[..., 3:])]
    np.testing.assert_allclose(norm(x), np.concatenate(halves, axis=-1) * weights_of(norm)["weight"], **CLOSE)
