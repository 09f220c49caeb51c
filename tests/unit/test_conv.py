"""The special convolutions against MLX's general ones, and as streams."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tests.models import normal, randomised
from voicechat_mlx.nn import conv
from voicechat_mlx.nn.conv import DepthwiseConv1d, PatchConv1d, PatchConvTranspose1d, PointwiseConv1d

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
"""float32 sums of at most a few dozen products, in another order."""


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kernel", [1, 2, 4, 7, 9])
@pytest.mark.parametrize("steps", [1, 2, 5, 20])
def test_depthwise_is_a_grouped_convolution_padded_on_the_left(bias: bool, kernel: int, steps: int) -> None:
    layer, x = randomised(DepthwiseConv1d(5, kernel, bias=bias)), normal(2, steps, 5)
    expected = mx.conv1d(mx.pad(x, [(0, 0), (kernel - 1, 0), (0, 0)]), layer.weight, groups=5)
    np.testing.assert_allclose(layer(x), expected + layer.bias if bias else expected, **CLOSE)


@pytest.mark.parametrize("at_most", [0, 1 << 20])
def test_depthwise_tap_by_tap_and_all_taps_at_once_are_the_same(monkeypatch, at_most: int) -> None:
    monkeypatch.setattr(conv, "FEW", at_most)
    layer, x = randomised(DepthwiseConv1d(5, 7, bias=False)), normal(2, 20, 5)
    expected = mx.conv1d(mx.pad(x, [(0, 0), (6, 0), (0, 0)]), layer.weight, groups=5)
    np.testing.assert_allclose(layer(x), expected, **CLOSE)


@pytest.mark.parametrize("kernel", [1, 2, 7])
@pytest.mark.parametrize("cuts", [[1], [1, 2, 3], [6, 7], list(range(1, 11))])
def test_depthwise_in_pieces_gives_the_same(kernel: int, cuts: list[int]) -> None:
    layer, x = randomised(DepthwiseConv1d(5, kernel, bias=True)), normal(1, 11, 5)
    cache = layer.make_cache(1, mx.float32)
    pieces = [layer(piece, cache) for piece in mx.split(x, cuts, axis=1)]
    np.testing.assert_allclose(mx.concatenate(pieces, axis=1), layer(x), **CLOSE)


@pytest.mark.parametrize("bias", [True, False])
def test_pointwise_is_a_convolution_with_kernel_one(bias: bool) -> None:
    layer, x = randomised(PointwiseConv1d(5, 8, bias=bias)), normal(2, 3, 5)
    expected = mx.conv1d(x, layer.weight)
    np.testing.assert_allclose(layer(x), expected + layer.bias if bias else expected, **CLOSE)


@pytest.mark.parametrize("kernel", [1, 7, 9])
def test_patches_are_a_convolution_whose_stride_is_its_kernel(kernel: int) -> None:
    layer, x = randomised(PatchConv1d(5, 8, kernel)), normal(2, 3 * kernel, 5)
    np.testing.assert_allclose(layer(x), mx.conv1d(x, layer.weight, stride=kernel), **CLOSE)


@pytest.mark.parametrize("kernel", [1, 7, 9])
def test_the_transpose_of_patches_is_a_transposed_convolution(kernel: int) -> None:
    layer, x = randomised(PatchConvTranspose1d(5, 8, kernel)), normal(2, 3, 5)
    expected = mx.conv_transpose1d(x, layer.weight, stride=kernel)
    assert layer(x).shape == (2, 3 * kernel, 8)
    np.testing.assert_allclose(layer(x), expected, **CLOSE)
