"""Eight mel rows to one frame: lengths, the frequency axis, and MLX's own 2-D convolution as the judge."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tests.models import normal, randomised
from voicechat_mlx.perception import subsampling
from voicechat_mlx.perception.subsampling import CausalDwStridingSubsampling, subsampled

CHANNELS, WIDTH = 5, 12
CLOSE = {"rtol": 2e-5, "atol": 2e-5}
"""float32 sums of at most 9 · 5 · 17 products, in another order."""


def make(features: int = 128) -> CausalDwStridingSubsampling:
    return randomised(CausalDwStridingSubsampling(features, CHANNELS, WIDTH))


def by_general_convolutions(model: CausalDwStridingSubsampling, mel: mx.array) -> mx.array:
    """The same network with `mx.conv2d`, padded (2, 1) on time and frequency before each stride-2 stage."""

    def stage(index: int, x: mx.array) -> mx.array:
        padded = mx.pad(x, [(0, 0), (2, 1), (2, 1), (0, 0)])
        conv = model.conv[index]
        groups = x.shape[-1] if index else 1
        return mx.conv2d(padded, conv.weight, stride=2, groups=groups) + conv.bias

    def pointwise(index: int, x: mx.array) -> mx.array:
        return mx.maximum(mx.conv2d(x, model.conv[index].weight) + model.conv[index].bias, 0)

    x = mx.maximum(stage(0, mel[..., None]), 0)
    x = pointwise(3, stage(2, x))
    x = pointwise(6, stage(5, x))
    return model.out(x.transpose(0, 1, 3, 2).flatten(2))


def test_128_mel_frames_give_17_encoder_frames_and_17_frequency_bins() -> None:
    """128 → 65 → 33 → 17 on both axes, by floor((n + 3 - 3) / 2) + 1."""
    assert [subsampled(n) for n in (128, 65, 33)] == [65, 33, 17]
    model = make()
    assert model.out.weight.shape == (WIDTH, 17 * CHANNELS)
    assert model(normal(1, 128, 128)).shape == (1, 17, WIDTH)


@pytest.mark.parametrize("rows", [2, 3, 7, 8, 9, 10, 17, 18, 25, 26, 101])
def test_frames_are_two_plus_an_eighth_of_the_rows_after_the_second(rows: int) -> None:
    assert make()(normal(1, rows, 128)).shape[1] == (rows - 2) // 8 + 2


def test_one_row_gives_one_frame() -> None:
    assert make()(normal(1, 1, 128)).shape == (1, 1, WIDTH)


@pytest.mark.parametrize(("rows", "features"), [(1, 128), (2, 128), (40, 128), (31, 20), (16, 9)])
@pytest.mark.parametrize("few", [0, 1 << 30], ids=["tap by tap", "at once"])
def test_it_equals_general_two_dimensional_convolutions(rows: int, features: int, few: int, monkeypatch) -> None:
    monkeypatch.setattr(subsampling, "FEW", few)
    model, mel = make(features), normal(2, rows, features)
    np.testing.assert_allclose(model(mel), by_general_convolutions(model, mel), **CLOSE)


def test_flattening_puts_channels_before_bins() -> None:
    """With channel 3 silenced before `out`, exactly the columns 3 · 17 … 3 · 17 + 16 of the flat row are zero."""
    model = make()
    model.out.weight, model.out.bias = mx.eye(17 * CHANNELS), mx.zeros((17 * CHANNELS,))
    model.conv[6].weight[3], model.conv[6].bias[3] = 0, -1.0
    rows = np.asarray(model(normal(1, 40, 128)))[0].reshape(-1, CHANNELS, 17)
    assert (rows != 0).any(axis=(0, 2)).tolist() == [True, True, True, False, True]


def test_frame_k_depends_on_the_rows_up_to_8k_only() -> None:
    model, mel = make(), normal(1, 34, 128)
    frames = np.asarray(model(mel))
    for row in range(34):
        moved = mx.array(np.asarray(mel))
        moved[0, row] += 1.0
        changed = np.flatnonzero((np.asarray(model(moved)) != frames).any(axis=(0, 2)))
        assert changed.min(initial=99) == -(-row // 8)  # the first frame with 8 k ≥ row


@pytest.mark.parametrize("cuts", [[1], [1, 9, 17], [5, 6, 7, 20], list(range(1, 27))])
def test_rows_in_pieces_give_the_same_frames(cuts: list[int]) -> None:
    model, mel = make(), normal(1, 27, 128)
    cache = model.make_cache(1, mx.float32)
    pieces = mx.split(mel, cuts, axis=1)
    frames = [model(piece, cache, last=index == len(cuts)) for index, piece in enumerate(pieces)]
    np.testing.assert_allclose(mx.concatenate(frames, axis=1), model(mel), **CLOSE)


def test_each_eighth_row_completes_a_frame() -> None:
    """Rows 1, 9, 17, … complete frames 0, 1, 2, …; the end of the stream completes one more."""
    model, mel = make(), normal(1, 20, 128)
    cache = model.make_cache(1, mx.float32)
    counts = [model(mel[:, row : row + 1], cache, last=False).shape[1] for row in range(20)]
    assert [row for row, count in enumerate(counts) if count] == [0, 8, 16]
    assert model(mel[:, :0], cache, last=True).shape[1] == (20 - 2) // 8 + 2 - 3
