"""Weights in another order give the same products: blocks, small weights turned in place, groups, whole models."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_flatten

from tests.models import SHALLOW, build, normal, speech, with_weights
from tests.talks import assert_same, talk
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.nn import linear, packed
from voicechat_mlx.nn.conv import PointwiseConv1d
from voicechat_mlx.nn.linear import LinearGroup
from voicechat_mlx.nn.lstm import LSTM
from voicechat_mlx.nn.packed import BLOCK, PackedLinear, affine, laid_out, pack, packs

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
"""float32 sums of at most a few hundred products, in another order."""


@pytest.fixture(autouse=True)
def linux(monkeypatch) -> None:
    """The CPU of a Linux machine, whatever this is."""
    monkeypatch.setattr(packed, "computes_here", lambda weight: weight.dtype == mx.float32)


@pytest.fixture
def everything_is_large(monkeypatch) -> None:
    monkeypatch.setattr(packed, "SMALLEST", 1)


def products(x: mx.array, weight: mx.array) -> np.ndarray:
    return np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T


@pytest.mark.parametrize("outputs", [1, 63, 64, 65, 192, 200])
@pytest.mark.parametrize("shape", [(7,), (1, 7), (2, 1, 7), (1, 5, 7), (3, 2, 7)])
def test_blocks_multiply_as_the_weight_does(outputs: int, shape: tuple[int, ...]) -> None:
    weight, bias, x = normal(outputs, 7), normal(outputs), normal(*shape)
    layer = PackedLinear.of(weight, bias)
    assert layer(x).shape == (*shape[:-1], outputs)
    np.testing.assert_allclose(layer(x), products(x, weight) + np.asarray(bias), **CLOSE)


def test_a_block_holds_64_neighbouring_outputs_and_the_last_is_filled_with_zeros() -> None:
    weight = mx.arange(70 * 3, dtype=mx.float32).reshape(70, 3)
    blocks = np.asarray(PackedLinear.of(weight).blocks)
    assert blocks.shape == (2, 3, BLOCK)
    assert blocks[0, 2, 63] == 63 * 3 + 2
    assert blocks[1, :, 5].tolist() == [69 * 3, 69 * 3 + 1, 69 * 3 + 2]
    assert not blocks[1, :, 6:].any()


def test_parts_of_blocks_are_the_layers_that_were_joined() -> None:
    weight, x = normal(64 + 128 + 10, 7), normal(2, 3, 7)
    parts = PackedLinear.of(weight).split([64, 192])
    expected = np.split(products(x, weight), [64, 192], axis=-1)
    for part, wanted in zip(parts, expected, strict=True):
        np.testing.assert_allclose(part(x), wanted, **CLOSE)


def test_a_small_weight_keeps_its_shape_and_numbers() -> None:
    weight = normal(5, 7)
    np.testing.assert_array_equal(laid_out(weight), weight)
    np.testing.assert_allclose(affine(weight, mx.ones(5))(normal(2, 7)), products(normal(2, 7), weight) + 1, **CLOSE)


@pytest.mark.parametrize(("shape", "large"), [((256, 512), True), ((256, 511), False)])
def test_blocks_are_for_weights_of_half_a_megabyte_and_more(shape, large) -> None:
    assert packs(mx.zeros(shape)) is large
    assert not packs(mx.zeros(shape, mx.bfloat16))


@pytest.mark.usefixtures("everything_is_large")
def test_a_group_becomes_one_matrix_and_its_layers_parts_of_it() -> None:
    class Owner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(7, n, bias=False) for n in (64, 128, 10))
            self.group = LinearGroup(self, "a", "b", "c")

    owner, x = Owner(), normal(1, 1, 7)
    alone = [layer(x) for layer in (owner.a, owner.b, owner.c)]
    owner.group.join()
    owner.group.join()  # once more changes nothing
    assert {type(owner[name]) for name in "abc"} == {PackedLinear}
    np.testing.assert_allclose(owner.group(x), mx.concatenate(alone, axis=-1), **CLOSE)
    for name, part, wanted in zip("abc", owner.group.split(owner.group(x)), alone, strict=True):
        np.testing.assert_allclose(part, wanted, **CLOSE)
        np.testing.assert_allclose(owner[name](x), wanted, **CLOSE)


@pytest.mark.usefixtures("everything_is_large")
def test_a_group_whose_layers_do_not_begin_at_a_block_is_joined_as_it_is() -> None:
    owner = nn.Module()
    owner.a, owner.b = nn.Linear(7, 60, bias=False), nn.Linear(7, 68, bias=False)
    group, x = LinearGroup(owner, "a", "b"), normal(1, 1, 7)
    alone = mx.concatenate([owner.a(x), owner.b(x)], axis=-1)
    group.join()
    assert type(owner.a) is nn.Linear
    np.testing.assert_allclose(group(x), alone, **CLOSE)
    np.testing.assert_allclose(owner.b(x), alone[..., 60:], **CLOSE)


def test_linear_and_pointwise_layers_of_a_model_are_replaced_but_for_the_named_one(monkeypatch) -> None:
    monkeypatch.setattr(packed, "SMALLEST", 100)
    model = nn.Module()
    model.large, model.small, model.rows = nn.Linear(10, 12), nn.Linear(3, 4), nn.Linear(10, 12)
    model.point = PointwiseConv1d(10, 12, bias=True)
    model.list = [nn.Linear(10, 11, bias=False)]
    x, narrow = normal(1, 2, 10), normal(1, 2, 3)
    layers = ("large", "point", "rows")
    before = [model[name](x) for name in layers] + [model.list[0](x), model.small(narrow)]
    pack(model, except_for="rows")
    assert [type(model[name]) for name in layers] == [PackedLinear, PackedLinear, nn.Linear]
    assert type(model.list[0]) is PackedLinear and type(model.small) is nn.Linear
    after = [model[name](x) for name in layers] + [model.list[0](x), model.small(narrow)]
    for found, expected in zip(after, before, strict=True):
        np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.usefixtures("everything_is_large")
def test_an_lstm_steps_the_same_from_blocks() -> None:
    def run(layer: LSTM) -> mx.array:
        cache = layer.make_cache(1)
        return mx.concatenate([layer(normal(1, 6, seed=step), cache) for step in range(3)])

    def filled() -> LSTM:
        lstm = LSTM(6, 2)
        drawn = {name: 0.3 * normal(*old.shape) for name, old in tree_flatten(lstm.parameters())}
        return with_weights(lstm, drawn)

    blocks = run(filled())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "computes_here", lambda weight: False)
        np.testing.assert_allclose(blocks, run(filled()), **CLOSE)


def test_a_model_in_blocks_says_the_same_and_holds_no_weight_twice(monkeypatch) -> None:
    monkeypatch.setattr(packed, "computes_here", lambda weight: False)
    plain = build(SHALLOW)
    monkeypatch.undo()
    monkeypatch.setattr(packed, "SMALLEST", 1)
    blocks = build(SHALLOW)
    kinds = [type(module) for module in blocks.modules()]
    assert kinds.count(PackedLinear) > 20 and kinds.count(nn.Linear) == len(_row_major(blocks))
    assert_same(talk(blocks, speech(1.2), [1280, 5000]), talk(plain, speech(1.2), [1280, 5000]))
    assert _numbers(blocks) < 1.5 * _numbers(plain)  # blocks of 64 are filled up, which is much in so small a model


def _row_major(model: VoiceChat) -> list[str]:
    """Linear layers that stay: rows of `proj_mus` are read one by one, and groups that begin within a block."""
    return [path for path, module in model.named_modules() if type(module) is nn.Linear]


def _numbers(model: VoiceChat) -> int:
    return sum(array.size for _, array in tree_flatten(model.parameters()))


def test_a_group_knows_the_block_size_of_the_blocks() -> None:
    assert linear.BLOCK == packed.BLOCK == 64
