"""The codec: quantiser by brute force, shapes, streams to the last sample, causality, silence."""

from __future__ import annotations

from math import erf

import mlx.core as mx
import numpy as np
import pytest

from tests.models import normal, randomised, shallow, tiny
from voicechat_mlx.codec.convnext import ConvNeXtBlock
from voicechat_mlx.codec.prvq import Prvq
from voicechat_mlx.config import CodecConfig

SAMPLES = 1764
AUDIO_CLOSE = 1e-5
"""What the split law allows between audio decoded whole and in pieces."""


def codes(frames: int, seed: int = 0, batch: int = 1) -> mx.array:
    return mx.array(np.random.default_rng(seed).integers(0, 29, (batch, frames, 31)))


def test_a_code_frame_is_1764_samples_and_the_spectrogram_has_18_channels() -> None:
    config = CodecConfig()
    assert config.samples_per_frame == 4 * 7 * 7 * 9 == 1764 == 0.08 * 22050
    assert config.stft_channels == 2 * (16 // 2 + 1) == 18
    assert tiny().codec.samples_per_frame == 1764


@pytest.mark.parametrize("frames", [1, 2, 38])
def test_silence_is_encoded_and_decoded_to_the_right_shapes(frames: int) -> None:
    codec = shallow().codec
    found = codec.encode(mx.zeros((1, frames * SAMPLES)))
    assert found.shape == (1, frames, 31)
    assert found.dtype == mx.int32
    assert 0 <= found.min().item() <= found.max().item() < 29
    wave = codec.decode(found)
    assert wave.shape == (1, frames * SAMPLES)
    assert np.isfinite(np.asarray(wave)).all()


def test_silence_gives_the_same_codes_in_every_frame_once_the_padding_is_behind() -> None:
    """All inputs are zero, so only the padding of the causal convolutions tells frames apart: the first few."""
    found = np.asarray(shallow().codec.encode(mx.zeros((1, 38 * SAMPLES))))[0]
    assert (found[5:] == found[5]).all()


def test_encoding_is_causal() -> None:
    """Frame k reads samples below 1764 (k + 1) + 6, the second half of its last window included."""
    codec = shallow().codec
    wave = 0.1 * normal(1, 4 * SAMPLES)
    before = np.asarray(codec.encode(wave))
    moved = np.asarray(wave).copy()
    moved[0, 2 * SAMPLES + 6 :] += 0.3
    after = np.asarray(codec.encode(mx.array(moved)))
    np.testing.assert_array_equal(after[0, :2], before[0, :2])
    assert (after[0, 2:] != before[0, 2:]).any()


def test_the_quantiser_takes_the_nearest_mean_of_what_is_left() -> None:
    quantiser, latents = randomised(Prvq(5, 9, 4), std=1.0), normal(2, 3, 4)
    found = np.asarray(quantiser.encode(latents))
    left = np.asarray(latents, np.float64)
    for level, book in enumerate(np.asarray(quantiser.mus_list, np.float64)):
        nearest = ((left[..., None, :] - book) ** 2).sum(axis=-1).argmin(axis=-1)
        np.testing.assert_array_equal(found[..., level], nearest)
        left = left - book[nearest]


def test_the_quantiser_decodes_to_the_sum_of_the_chosen_means() -> None:
    quantiser = randomised(Prvq(5, 9, 4), std=1.0)
    chosen = np.random.default_rng(0).integers(0, 9, (2, 3, 5))
    books = np.asarray(quantiser.mus_list, np.float64)
    expected = books[np.arange(5), chosen].sum(axis=-2)
    np.testing.assert_allclose(quantiser.decode(mx.array(chosen)), expected, rtol=1e-5, atol=1e-5)


def test_a_sum_of_well_separated_means_is_encoded_exactly() -> None:
    quantiser = Prvq(2, 3, 2)
    quantiser.mus_list = [mx.array([[0, 0], [10, 0], [0, 10.0]]), mx.array([[0, 0], [1, 0], [0, 1.0]])]
    latents = mx.array([[10.0, 1.0], [1.0, 10.0], [0.1, 0.0]])
    assert quantiser.encode(latents).tolist() == [[1, 2], [2, 1], [0, 0]]


def test_a_convnext_block_adds_the_exact_gelu_of_four_times_its_width() -> None:
    block, x = randomised(ConvNeXtBlock(4, 3)), normal(1, 5, 4)
    normed = block.norm(block.dwconv(x))
    inner = np.asarray(block.pwconv1(normed), np.float64)
    assert inner.shape == (1, 5, 16)
    active = inner * 0.5 * (1 + np.vectorize(erf)(inner / np.sqrt(2)))
    expected = x + block.pwconv2(mx.array(active.astype(np.float32)))
    np.testing.assert_allclose(block(x), expected, rtol=1e-5, atol=1e-5)
    assert block.norm.eps == 1e-6


@pytest.mark.parametrize("cuts", [[1], [1, 2, 3, 4, 5, 6], [3, 4], [6]], ids=str)
def test_decoding_in_pieces_is_exact_to_the_last_sample(cuts: list[int]) -> None:
    codec, stream = tiny().codec, codes(7)
    cache = codec.make_cache()
    parts = [codec.decode_stream(part, cache) for part in mx.split(stream, cuts, axis=1)]
    joined = np.asarray(mx.concatenate([*parts, codec.flush(cache)], axis=1))[:, codec.delay :]
    assert joined.shape == (1, 7 * SAMPLES)
    np.testing.assert_allclose(joined, codec.decode(stream), atol=AUDIO_CLOSE)


def test_a_decoded_stream_lags_by_six_samples_and_the_flush_brings_them() -> None:
    codec = shallow().codec
    cache = codec.make_cache()
    assert codec.delay == (16 - 4) // 2 == 6
    assert codec.decode_stream(codes(2), cache).shape == (1, 2 * SAMPLES)
    assert codec.flush(cache).shape == (1, 6)


def test_decoding_is_causal_but_for_the_overlap_of_six_samples() -> None:
    codec, stream = shallow().codec, np.asarray(codes(5))
    moved = stream.copy()
    moved[0, 3] = (moved[0, 3] + 1) % 29
    changed = np.asarray(codec.decode(mx.array(moved))) != np.asarray(codec.decode(mx.array(stream)))
    first = int(np.flatnonzero(changed[0])[0])
    assert 3 * SAMPLES - 6 <= first <= 3 * SAMPLES


def test_streams_of_a_batch_do_not_mix() -> None:
    codec, stream = shallow().codec, codes(3, batch=2)
    both = codec.decode(stream)
    for row in range(2):
        np.testing.assert_allclose(both[row : row + 1], codec.decode(stream[row : row + 1]), atol=AUDIO_CLOSE)
