"""Activation functions against Python's own mathematics."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, sqrt

import mlx.core as mx
import numpy as np
import pytest

from voicechat_mlx.nn import activations


@pytest.mark.parametrize("gelu", [activations.gelu, activations._gelu_of_erf, activations._gelu_of_sums])
def test_the_exact_gelu_in_both_its_forms(gelu: Callable[[mx.array], mx.array]) -> None:
    x = np.linspace(-9, 9, 2001)
    expected = x * 0.5 * (1 + np.vectorize(erf)(x / sqrt(2)))
    np.testing.assert_allclose(gelu(mx.array(x.astype(np.float32))), expected, rtol=1e-6, atol=1e-6)
