"""Conformer blocks and the whole perception: shapes, the convolution module by hand, streams, padding frames."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tests.models import normal, randomised, weights_of
from voicechat_mlx.config import AudioConfig, EncoderConfig, JointConfig
from voicechat_mlx.perception.conformer import (
    ConformerBlock,
    ConformerConvolution,
    FastConformerEncoder,
    FeedForward,
    Perception,
)

CONFIG = EncoderConfig(
    n_layers=2, d_model=12, n_heads=3, subsampling_conv_channels=5, att_context_size=(4, 0), conv_kernel_size=3
)
CLOSE = {"rtol": 5e-5, "atol": 5e-5}
"""float32 in another order, through two blocks whose norms keep everything near one."""


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * weight + bias


def test_block_output_has_the_shape_of_its_input() -> None:
    block = randomised(ConformerBlock(CONFIG))
    for shape in [(1, 1, 12), (1, 9, 12), (2, 5, 12)]:
        out = block(normal(*shape))
        assert out.shape == shape
        assert np.isfinite(np.asarray(out)).all()


def test_feed_forward_is_two_products_around_silu() -> None:
    module, x = randomised(FeedForward(6, 10)), normal(1, 4, 6)
    weights = weights_of(module)
    inner = np.asarray(x, np.float64) @ weights["linear1.weight"].T
    np.testing.assert_allclose(module(x), inner * sigmoid(inner) @ weights["linear2.weight"].T, **CLOSE)


def test_the_convolution_module_equals_its_equations() -> None:
    module, x = randomised(ConformerConvolution(6, 4)), normal(1, 7, 6)
    weights, rows = weights_of(module), np.asarray(x[0], np.float64)
    doubled = rows @ weights["pointwise_conv1.weight"][:, 0].T
    gated = np.pad(doubled[:, :6] * sigmoid(doubled[:, 6:]), [(3, 0), (0, 0)])
    taps = weights["depthwise_conv.weight"][:, :, 0].T
    mixed = np.array([(gated[t : t + 4] * taps).sum(axis=0) for t in range(7)])
    normed = layer_norm(mixed, weights["batch_norm.weight"], weights["batch_norm.bias"])
    expected = normed * sigmoid(normed) @ weights["pointwise_conv2.weight"][:, 0].T
    np.testing.assert_allclose(module(x)[0], expected, **CLOSE)


def test_a_block_adds_its_parts_in_the_order_of_the_specification() -> None:
    block, x = randomised(ConformerBlock(CONFIG)), normal(1, 6, 12)
    y = x + 0.5 * block.feed_forward1(block.norm_feed_forward1(x))
    y = y + block.self_attn(block.norm_self_att(y))
    y = y + block.conv(block.norm_conv(y))
    y = y + 0.5 * block.feed_forward2(block.norm_feed_forward2(y))
    np.testing.assert_allclose(block(x), block.norm_out(y), **CLOSE)


@pytest.mark.parametrize("kernel", [1, 2, 9])
@pytest.mark.parametrize("cuts", [[1], [1, 9, 17, 25], [3, 4, 30]])
def test_the_encoder_as_a_stream_equals_the_encoder_at_once(kernel: int, cuts: list[int]) -> None:
    config = EncoderConfig(
        n_layers=2, d_model=12, n_heads=3, subsampling_conv_channels=5, att_context_size=(4, 0), conv_kernel_size=kernel
    )
    encoder, mel = randomised(FastConformerEncoder(config)), normal(1, 60, 128)
    cache = encoder.make_cache(1, mx.float32)
    parts = mx.split(mel, cuts, axis=1)
    frames = [encoder(part, cache, last=index == len(cuts)) for index, part in enumerate(parts)]
    whole = encoder(mel)
    assert whole.shape == (1, (60 - 2) // 8 + 2, 12)
    np.testing.assert_allclose(mx.concatenate(frames, axis=1), whole, **CLOSE)


def test_perception_gives_both_the_projected_and_the_encoded_frames() -> None:
    config = AudioConfig(encoder=CONFIG, joint=JointConfig(encoder_hidden=12), output_dim=20)
    perception = randomised(Perception(config))
    projected, encoded = perception(normal(1, 25, 128))
    assert projected.shape == (1, 4, 20)
    assert encoded.shape == (1, 4, 12)
    weights = weights_of(perception)
    expected = np.asarray(encoded, np.float64) @ weights["proj.weight"].T + weights["proj.bias"]
    np.testing.assert_allclose(projected, expected, **CLOSE)


def test_a_padding_frame_sees_the_convolution_but_not_the_attention() -> None:
    """Masks turn its attention output and its own convolution input to zero; what came before still reaches it."""
    encoder, mel = randomised(FastConformerEncoder(CONFIG)), normal(1, 25, 128)
    cache = encoder.make_cache(1, mx.float32)
    encoder(mel, cache, last=True)
    frame = encoder.padding_frame(cache)
    fresh = encoder.make_cache(1, mx.float32)
    encoder(mel, fresh, last=True)
    y = encoder.pre_encode.out.bias[None, None]
    for block, past in zip(encoder.layers, fresh.layers, strict=True):
        y = y + 0.5 * block.feed_forward1(block.norm_feed_forward1(y))
        window = mx.concatenate([past.conv.steps, mx.zeros((1, 1, 12))], axis=1)
        taps = block.conv.depthwise_conv.weight[:, :, 0].T
        mixed = (window * taps).sum(axis=1, keepdims=True)
        y = y + block.conv.pointwise_conv2(mx.sigmoid(normed := block.conv.batch_norm(mixed)) * normed)
        y = y + 0.5 * block.feed_forward2(block.norm_feed_forward2(y))
        y = block.norm_out(y)
    np.testing.assert_allclose(frame, y, **CLOSE)
