"""The CUDA kernels against the plain MLX code beside them: on an NVIDIA GPU, elsewhere emulated on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

import voicechat_mlx as vc
from fixtures.random_model import random_model
from tests.cuda.emulator import COMPILER, emulated, pretended
from voicechat_mlx.codec.stft import ShortStft
from voicechat_mlx.config import (
    AudioConfig,
    CharacterEncoderConfig,
    CodecConfig,
    DecoderConfig,
    EncoderConfig,
    JointConfig,
    MogHeadConfig,
    TextConfig,
    TtsConfig,
    VoiceChatConfig,
)
from voicechat_mlx.llm.attention import Attention
from voicechat_mlx.llm.mamba import Mamba2Mixer
from voicechat_mlx.llm.nemotron_h import NemotronH
from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.activations import geglu, glu, relu_squared, silu
from voicechat_mlx.nn.cache import Timeline, arrays_of, begin_step, end_step, limit_history
from voicechat_mlx.nn.conv import DepthwiseConv1d
from voicechat_mlx.nn.cuda import chain
from voicechat_mlx.nn.fused import fused, fused_after, normed
from voicechat_mlx.nn.norms import GroupedRMSNorm, OffsetRMSNorm, add_norm
from voicechat_mlx.perception.rel_attention import RelPosMultiHeadAttention
from voicechat_mlx.perception.rnnt import GreedyRnnt, JointNetwork, RnntDecoder
from voicechat_mlx.perception.subsampling import CausalDwStridingSubsampling
from voicechat_mlx.pipeline import hear
from voicechat_mlx.precision import Precision
from voicechat_mlx.talker.backbone import TalkerAttention
from voicechat_mlx.talker.ear_tts import EarTts
from voicechat_mlx.talker.mog_head import MogHead

REAL = cuda.available()
pytestmark = pytest.mark.skipif(not (REAL or COMPILER), reason="needs an NVIDIA GPU, or a C++ compiler to emulate one")
TOLERANCE = 1e-5
"""Relative RMS in float32: both sides add the same few thousand products in another order."""
TEXT = TextConfig(
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=4,
    hybrid_override_pattern="M-*M",
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=32,
    mamba_num_heads=6,
    mamba_head_dim=24,
    ssm_state_size=40,
    n_groups=2,
    vocab_size=1024,
)
TTS = TtsConfig(
    hidden_size=288,
    intermediate_size=320,
    num_hidden_layers=7,
    num_attention_heads=4,
    num_key_value_heads=4,
    sliding_window=9,
    latent_size=64,
    codebook_size=96,
    character_encoder=CharacterEncoderConfig(
        hidden_size=288, intermediate_size=320, num_attention_heads=4, num_key_value_heads=4
    ),
    mog_head=MogHeadConfig(intermediate_size=320, num_predictions=256, low_rank=16),
)

TALKATIVE = VoiceChatConfig(
    text_config=TEXT,
    audio_config=AudioConfig(
        encoder=EncoderConfig(n_layers=3, d_model=64, subsampling_conv_channels=16, n_heads=2),
        decoder=DecoderConfig(pred_hidden=64),
        joint=JointConfig(encoder_hidden=64, pred_hidden=64, joint_hidden=64),
        output_dim=128,
    ),
    tts_config=TTS,
    codec_config=CodecConfig(base_channels=8, latent_dim=64, codebook_size=96),
)


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cuda, chain):
        monkeypatch.setattr(module, "available", lambda: False)


@pytest.fixture(autouse=True)
def _gpu_or_emulator() -> Iterator[None]:
    mx.random.seed(0)
    with nullcontext() if REAL else pretended(emulated, 2 + chain.SPARED):
        yield


def close(found: mx.array, expected: mx.array, tolerance: float) -> None:
    found, expected = (np.array(x.astype(mx.float32), np.float64) for x in (found, expected))
    assert np.sqrt(((found - expected) ** 2).mean() / (expected**2).mean()) < tolerance


def both_ways(monkeypatch: pytest.MonkeyPatch, run: Callable[[], list[mx.array]], tolerance: float = TOLERANCE) -> None:
    """`run` with the kernels and without."""
    fast = run()
    mx.eval(fast)
    without_kernels(monkeypatch)
    plain = run()
    for found, expected in zip(fast, plain, strict=True):
        close(found, expected, tolerance)


def randomise(module: object, scale: float = 1.0) -> None:
    from mlx.utils import tree_flatten, tree_unflatten

    names = tree_flatten(module.parameters())
    drawn = [
        (name, mx.random.normal(x.shape) * scale * (x.shape[-1] ** -0.5 if x.ndim > 1 else 0.3)) for name, x in names
    ]
    module.update(tree_unflatten(drawn))
    for part in module.modules():
        if hasattr(part, "prepare"):
            part.prepare()


NORMS = {
    "none": lambda width: None,
    "rms": lambda width: nn.RMSNorm(width, eps=1e-5),
    "offset": lambda width: OffsetRMSNorm(width, 1e-6),
    "layer": lambda width: nn.LayerNorm(width, eps=1e-5),
    "grouped": lambda width: GroupedRMSNorm(width, 4, 1e-5),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("rows", [1, 2])
def test_a_product_with_its_norm(monkeypatch: pytest.MonkeyPatch, norm: str, rows: int) -> None:
    layer, before = nn.Linear(320, 77), NORMS[norm](320)
    randomise(layer)
    if before:
        randomise(before)
    x, residual = mx.random.normal((rows, 1, 320)), mx.random.normal((rows, 1, 77))
    after_norm = silu if norm == "layer" else None
    both_ways(
        monkeypatch,
        lambda: [
            fused(x, layer, norm=before, after_norm=after_norm, activation=silu),
            fused(x, layer, norm=before, activation=relu_squared, residual=residual),
            fused(x, layer, residual=residual, half=True),
        ],
    )


@pytest.mark.parametrize("outputs", [200, 5000, 13000])
@pytest.mark.parametrize("activation", [glu, geglu])
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_whose_halves_join(
    monkeypatch: pytest.MonkeyPatch, outputs: int, activation: Callable[[mx.array], mx.array], bias: bool
) -> None:
    layer, norm = nn.Linear(64, outputs, bias=bias), nn.RMSNorm(64)
    randomise(layer)
    x = mx.random.normal((2, 1, 64))
    both_ways(monkeypatch, lambda: [fused(x, layer, norm=norm, activation=activation)])


@pytest.mark.parametrize("width", [96, 1152, 4480])
def test_a_product_of_any_width(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    layer = nn.Linear(width, 40, bias=False)
    randomise(layer)
    x = mx.random.normal((1, 1, width))
    both_ways(monkeypatch, lambda: [fused(x, layer, norm=nn.RMSNorm(width))])


@pytest.mark.parametrize("post", [True, False])
def test_a_product_after_a_sum(monkeypatch: pytest.MonkeyPatch, post: bool) -> None:
    layer, first, second = nn.Linear(320, 64, bias=False), OffsetRMSNorm(320, 1e-6), OffsetRMSNorm(320, 1e-6)
    randomise(layer), randomise(first), randomise(second)
    x, y = mx.random.normal((2, 1, 320)), mx.random.normal((2, 1, 320))

    def run() -> list[mx.array]:
        whole = fused_after(x, y, first if post else None, layer, norm=second)
        return [*whole, *fused_after(x, y[:1], None, layer, norm=second, activation=silu)]

    both_ways(monkeypatch, run)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_a_product_on_packed_weights(monkeypatch: pytest.MonkeyPatch, bits: int, group_size: int) -> None:
    plain = nn.Linear(2176, 100, bias=False)
    randomise(plain)
    layer = nn.QuantizedLinear.from_linear(plain, group_size, bits)
    x, residual = mx.random.normal((1, 1, 2176)), mx.random.normal((1, 1, 100))
    both_ways(monkeypatch, lambda: [fused(x, layer, norm=nn.RMSNorm(2176), residual=residual)])


@pytest.mark.parametrize("width", [128, 2112, 2560, 4480, 9216, 10304])
@pytest.mark.parametrize("bits", [0, 4, 8])
def test_a_product_in_bfloat16(bits: int, width: int) -> None:
    """As in float32, but rounded after norm, product, bias and sum: 2^-9 each, which the square doubles."""
    plain = nn.Linear(width, 104)
    randomise(plain)
    plain.set_dtype(mx.bfloat16)
    layer = nn.QuantizedLinear.from_linear(plain, 64, bits) if bits else plain
    parts = [layer[name].astype(mx.float32) for name in ("scales", "biases") if bits]
    weight = mx.dequantize(layer.weight, *parts, 64, bits) if bits else layer.weight
    norm, x = nn.RMSNorm(width), (mx.random.normal((1, 1, width)) + 0.5).astype(mx.bfloat16)
    residual = mx.random.normal((1, 1, 104)).astype(mx.bfloat16)
    rows = x.astype(mx.float32)
    normed = (rows * mx.rsqrt(mx.square(rows).mean() + norm.eps)).astype(mx.bfloat16).astype(mx.float32)
    expected = residual + relu_squared(normed @ weight.astype(mx.float32).T + plain.bias)
    found = fused(x, layer, norm=norm, activation=relu_squared, residual=residual)
    assert found.dtype == mx.bfloat16
    close(found, expected, 1e-2)


def test_a_chain_on_tensor_cores_gives_what_its_products_give_one_by_one() -> None:
    """Exactly: they round at the same places, and each adds up in one order."""
    layers = [nn.Linear(*sizes, bias=False) for sizes in ((192, 1088), (1088, 192), (192, 640))]
    for layer in layers:
        randomise(layer)
        layer.set_dtype(mx.bfloat16)
    up, down, on = (nn.QuantizedLinear.from_linear(layer, 64, 4) for layer in layers)
    norm = nn.RMSNorm(192, eps=1e-5)
    norm.set_dtype(mx.bfloat16)
    x = mx.random.normal((1, 1, 192)).astype(mx.bfloat16)

    def run() -> list[mx.array]:
        now, found = x, []
        for _ in range(2):
            now = fused(fused(now, up, norm=norm, activation=relu_squared), down, residual=now)
            found += [now, fused(now, on, norm=norm)]
        return [cuda.settled(each) for each in found]

    with cuda.chaining():
        together = run()
    for one, other in zip(together, run(), strict=True):
        assert (one == other).all().item()


def test_parameters_in_bfloat16_beside_activations_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, norm = nn.Linear(320, 40), nn.LayerNorm(320, eps=1e-5)
    for part in (layer, norm):
        randomise(part)
        part.set_dtype(mx.bfloat16)
    x = mx.random.normal((1, 1, 320))
    both_ways(monkeypatch, lambda: [fused(x, layer, norm=norm)])


def test_a_product_that_the_kernel_cannot_take_is_made_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    x, odd, long = mx.random.normal((3, 1, 64)), mx.random.normal((1, 1, 30)), mx.random.normal((2, 1, 8192))
    layers = [nn.Linear(64, 8), nn.Linear(30, 8), nn.Linear(8192, 8)]
    for layer in layers:
        randomise(layer)
    both_ways(monkeypatch, lambda: [fused(*pair) for pair in zip((x, odd, long), layers, strict=True)])


@pytest.mark.parametrize("bits", [0, 4])
def test_a_chain_of_products_gives_what_they_give_one_by_one(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    """More than fit into one launch; sums and norms between them; one result is asked for on the way."""
    up, down, joined = nn.Linear(192, 1000, bias=False), nn.Linear(500, 192), nn.Linear(192, 640, bias=False)
    offset, layer_norm, other = OffsetRMSNorm(192, 1e-5), nn.LayerNorm(192, eps=1e-5), nn.LayerNorm(192, eps=1e-5)
    wider = nn.LayerNorm(1000, eps=1e-5)
    parts = up, down, joined, offset, layer_norm, other, wider
    for part in parts:
        randomise(part)
    if bits:
        joined = nn.QuantizedLinear.from_linear(joined, 64, bits)
    x, y = mx.random.normal((2, 1, 192)), mx.random.normal((1, 1, 192))
    launches = []
    run = chain.launch

    def counted(steps: list[object], *rest: object) -> object:
        launches.append(len(steps))
        return run(steps, *rest)

    monkeypatch.setattr(chain, "launch", counted)

    def talk() -> list[mx.array]:
        found = []
        with cuda.chaining():
            now = x
            for _ in range(4):
                now, inner = fused_after(now, y, None, up, norm=offset, activation=glu)
                now = normed(fused(inner, down, residual=now), layer_norm)
                wide = fused(now, joined, norm=other, activation=silu)
                found += [now, wide]
            found.append(cuda.settled(normed(fused(now, up, norm=layer_norm), wider)) + 1)
            found.append(fused(now, joined, residual=wide))
        return [cuda.settled(each) for each in found]

    both_ways(monkeypatch, talk)
    assert launches == [chain.LONGEST, 3, 1]


def test_a_chain_with_more_outputs_than_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So narrow that few blocks could take all outputs at once, in two rows."""
    first, second = nn.Linear(128, 128), nn.Linear(128, 300)
    randomise(first), randomise(second)
    x = mx.random.normal((2, 1, 128))

    def run() -> list[mx.array]:
        with cuda.chaining():
            found = fused(fused(x, first), second)
        return [cuda.settled(found)]

    both_ways(monkeypatch, run)


def test_groups_and_books_that_are_no_whole_reads_are_made_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, norm = nn.Linear(72, 8), GroupedRMSNorm(72, 6, 1e-5)
    for part in (layer, norm):
        randomise(part)
        part.set_dtype(mx.bfloat16)
    x = mx.random.normal((1, 1, 72)).astype(mx.bfloat16)
    both_ways(monkeypatch, lambda: [fused(x, layer, norm=norm)], tolerance=2e-2)


def test_chains_that_nothing_orders_do_not_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU may run them side by side, if they are evaluated together."""
    layers = [nn.Linear(192, 192) for _ in range(3)]
    for layer in layers:
        randomise(layer)
    inputs = mx.random.normal((20, 1, 1, 192))

    def run() -> list[mx.array]:
        found = []
        for x in inputs:
            with cuda.chaining():
                for layer in layers:
                    x = fused(x, layer, activation=silu)
            found.append(cuda.settled(x))
        return found

    both_ways(monkeypatch, run)
    both_ways(monkeypatch, mx.compile(run))


def test_add_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    post, pre = OffsetRMSNorm(1152, 1e-6), OffsetRMSNorm(1152, 1e-6)
    randomise(post), randomise(pre)
    x, y = mx.random.normal((2, 1, 1152)), mx.random.normal((2, 1, 1152))
    both_ways(monkeypatch, lambda: [add_norm(x, y, post, pre)])


def test_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nucleus adds masses in another order, which matters only to a component at its very edge."""
    head = MogHead(TTS)
    randomise(head)
    hidden, shared = mx.random.normal((2, 288)), mx.random.normal((1, 288))
    draws = mx.random.gumbel((4, 256))
    both_ways(monkeypatch, lambda: [mx.concatenate(head(hidden, gumbel, shared)) for gumbel in draws])


def test_transducer_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames with no piece, with some, and with as many as there may be: the joint's scale decides."""
    decoder = DecoderConfig(pred_hidden=64, vocab_size=40)
    joint = JointConfig(joint_hidden=96, encoder_hidden=64, pred_hidden=64, num_classes=40)
    config = AudioConfig(decoder=decoder, joint=joint)
    networks = RnntDecoder(config), JointNetwork(config)
    mx.random.seed(3)  # all of these frames are among them
    for network in networks:
        randomise(network, 3.0)
    networks[1].joint_net[2].bias = networks[1].joint_net[2].bias + 4.0 * (mx.arange(41) == 40)
    rnnt, frames = GreedyRnnt(*networks, max_symbols=4), mx.random.normal((24, 1, 1, 64))
    found = []

    def run() -> list[mx.array]:
        cache = rnnt.make_cache()
        pieces = [rnnt.decode_frame(frame, cache) for frame in frames]
        found.append(np.array(mx.stack(pieces)))
        return [mx.stack(pieces), *arrays_of(cache)]

    both_ways(monkeypatch, run)
    assert (found[0] == found[1]).all()
    assert {0, 1, 4} <= set((found[0] != 40).sum(axis=1).tolist())


@pytest.mark.parametrize("is_global", [True, False])
def test_talker_attention_over_a_window_that_wraps(monkeypatch: pytest.MonkeyPatch, is_global: bool) -> None:
    layer = TalkerAttention(TTS, is_global=is_global)
    randomise(layer)
    frames = mx.random.normal((14, 2, 1, 288))

    def run() -> list[mx.array]:
        cache = layer.make_cache(2, mx.float32, Timeline())
        out = []
        for i in range(14):
            begin_step(cache, 1)
            out.append(layer(frames[i], cache, cache.mask(1)))
            mx.eval(out)  # before the buffer changes again
            end_step(cache, 1)
        return out

    both_ways(monkeypatch, run)


@pytest.mark.parametrize("history", [None, 4])
def test_attention_of_the_language_model_after_a_prompt(monkeypatch: pytest.MonkeyPatch, history: int | None) -> None:
    layer = Attention(TEXT)
    randomise(layer)
    frames = mx.random.normal((1, 12, 128))

    def run() -> list[mx.array]:
        cache = layer.make_cache(1, mx.float32, Timeline())
        if history:
            limit_history(cache, history, kept=5)
        out = []
        for piece in mx.split(frames, [5, *range(6, 12)], axis=1):
            steps = piece.shape[1]
            begin_step(cache, steps)
            out.append(layer(piece, cache, cache.mask(steps)))
            mx.eval(out)  # before the buffer changes again
            end_step(cache, steps)
        return [*out, cache.keys[:, :, :12], cache.values[:, :, :12]]

    both_ways(monkeypatch, run)


def test_a_frame_put_in_place_is_not_seen_by_a_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Attention(TEXT)
    randomise(layer)
    cache = layer.make_cache(1, mx.float32, Timeline())
    begin_step(cache, 1)
    twin = cache.clone()
    twin.detach()
    mx.eval(twin.keys, layer(mx.random.normal((1, 1, 128)), cache, cache.mask(1)))
    assert mx.abs(cache.keys).sum() > 0
    assert mx.abs(twin.keys).sum() == 0


def test_nearest_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    talker = EarTts(TTS)
    randomise(talker, 0.5)
    point = mx.random.normal((64,))

    def run() -> list[mx.array]:
        return list(talker._quantise(point, mx.arange(31), range(9, 31)))

    both_ways(monkeypatch, run)


def test_relative_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = RelPosMultiHeadAttention(256, 2, 10)
    randomise(layer)
    frames = mx.random.normal((14, 1, 1, 256))

    def run() -> list[mx.array]:
        cache = layer.make_cache(1, mx.float32)
        out = []
        for i in range(14):
            out.append(layer(frames[i], cache))
            end_step(cache, 1)
        return out

    both_ways(monkeypatch, run)


@pytest.mark.parametrize(("bias", "with_silu", "size"), [(True, True, 4), (False, False, 9)])
@pytest.mark.parametrize("with_norm", [True, False])
def test_a_depthwise_convolution_in_pieces(
    monkeypatch: pytest.MonkeyPatch, bias: bool, with_silu: bool, size: int, with_norm: bool
) -> None:
    conv, norm = DepthwiseConv1d(300, size, bias=bias, with_silu=with_silu), nn.LayerNorm(300, eps=1e-6)
    conv.weight = mx.random.normal(conv.weight.shape)
    conv.prepare()
    randomise(norm)
    pieces = mx.split(mx.random.normal((1, 25, 300)), [1, 2, 5, 16], axis=1)

    def run() -> list[mx.array]:
        cache = conv.make_cache(1, mx.float32)
        return [*(conv(piece, cache, norm=norm if with_norm else None) for piece in pieces), cache.steps]

    both_ways(monkeypatch, run)


def test_subsampling_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = CausalDwStridingSubsampling(128, 16, 32)
    randomise(layer)
    pieces = mx.split(mx.random.normal((1, 1 + 8 * 7, 128)), [1, 9, 17, 20, 41], axis=1)

    def run() -> list[mx.array]:
        cache = layer.make_cache(1, mx.float32)
        found = [layer(piece, cache, last=False) for piece in pieces]
        return [mx.concatenate(found, axis=1), *arrays_of(cache)]

    both_ways(monkeypatch, run)


def test_the_inverse_stft_of_a_stream_from_its_beginning_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stft = ShortStft(16, 4)
    pieces = mx.split(3.0 * mx.random.normal((1, 60, 18)), [1, 3, 20], axis=1)

    def run() -> list[mx.array]:
        cache = stft.make_cache(1)
        return [*(stft.inverse(piece, cache) for piece in pieces), *arrays_of(cache), stft.flush(cache)]

    both_ways(monkeypatch, run)


def test_mamba_step(monkeypatch: pytest.MonkeyPatch) -> None:
    mixer = Mamba2Mixer(TEXT)
    randomise(mixer)
    frames = mx.random.normal((12, 1, 1, 128))

    def run() -> list[mx.array]:
        cache = mixer.make_cache(1, mx.float32)
        return [mixer(frames[i], cache) for i in range(12)] + arrays_of(cache)

    both_ways(monkeypatch, run)


def test_mamba_with_limits_is_as_written_between_its_projections(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = NemotronH(replace(TEXT, time_step_limit=(0.05, 0.1)))
    randomise(layers)
    frames = mx.random.normal((3, 1, 1, 128))

    def run() -> list[mx.array]:
        cache = layers.make_cache(1, mx.float32)
        return [layers(frame, cache) for frame in frames]

    both_ways(monkeypatch, run)


def test_a_promise_of_a_chain_that_broke_off_is_kept_by_that_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, other = nn.Linear(192, 192), nn.Linear(192, 192)
    randomise(layer)
    randomise(other)
    x = mx.random.normal((1, 1, 192))

    def run() -> list[mx.array]:
        with suppress(KeyError), cuda.chaining():
            left = fused(fused(x, layer, activation=silu), layer)
            raise KeyError
        with cuda.chaining():
            first = fused(x, other)
            found = fused(left, other, residual=first)
        return [cuda.settled(found)]

    both_ways(monkeypatch, run)


def test_a_cache_of_a_chain_that_broke_off_is_not_set_back() -> None:
    conv, x = DepthwiseConv1d(64, 4, bias=False), mx.random.normal((1, 1, 64))
    randomise(conv)
    cache = conv.make_cache(1, mx.float32)
    with suppress(KeyError), cuda.chaining():
        left = conv(x, cache)
        raise KeyError
    cache.steps = mx.ones_like(cache.steps)
    cuda.settled(left)
    assert cache.steps.min().item() == 1.0


def test_a_norm_with_another_epsilon_is_no_part_of_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, before, norm = nn.Linear(64, 64), nn.LayerNorm(64, eps=1e-3), nn.RMSNorm(64, eps=1e-6)
    for part in (layer, before, norm):
        randomise(part)
    x = mx.random.normal((1, 1, 64)) * 0.1

    def run() -> list[mx.array]:
        with cuda.chaining():
            return [cuda.settled(fused(normed(fused(x, layer), before), layer, norm=norm))]

    both_ways(monkeypatch, run)


def test_a_cache_is_not_used_twice_in_a_chain() -> None:
    """The second use would read what the first has not brought yet."""
    conv, x = DepthwiseConv1d(64, 4, bias=False), mx.zeros((1, 1, 64))
    cache = conv.make_cache(1, mx.float32)
    with cuda.chaining(), pytest.raises(AssertionError, match="steps is set twice"):
        conv(conv(x, cache), cache)


def test_frames_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels round in fewer places: 1 % in the encoder, and random squared layers in a row make a few of it."""
    model = random_model(TALKATIVE, Precision(perception_llm=mx.bfloat16))
    mels = mx.random.normal((4, 1, 8, 128))

    def heard() -> list[mx.array]:
        encoder = model.perception.encoder.make_cache(1, mx.bfloat16)
        return [part for mel in mels for part in hear(model, encoder, mel)]

    projected = heard()[-2][:, -1:]

    def thought() -> list[mx.array]:
        layers = model.llm.make_cache(1, mx.bfloat16)
        begin_step(layers, 1)
        return [model.llm(projected, layers)]

    fast = thought()
    both_ways(monkeypatch, heard, tolerance=3e-2)
    close(fast[0], thought()[0], 0.1)


def test_a_whole_talk_gives_the_same_ids_and_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With kernels, on a GPU compiled as well as not, and without. In float32 all are equal to the last id."""
    model = random_model(TALKATIVE, Precision())
    pcm = (np.random.default_rng(0).normal(size=16000 if REAL else 4000) * 0.1).astype(np.float32)

    def talk(compiled: bool) -> vc.Session:
        model.run.compiled = compiled
        model._voice_prompts.clear()
        model.run._stages.clear()
        session = vc.Session(model, "Hi.")
        for begin in range(0, len(pcm), 1280):
            session.push(pcm[begin : begin + 1280])
        session.finish()
        return session

    sessions = [talk(compiled) for compiled in ([True, False] if REAL else [False])]
    without_kernels(monkeypatch)
    sessions.append(talk(False))
    for session in sessions[1:]:
        assert session.text_tokens.tolist() == sessions[0].text_tokens.tolist()
        assert session.audio_codes.tolist() == sessions[0].audio_codes.tolist()
        assert session.transcript.ids == sessions[0].transcript.ids
    assert len({tuple(codes) for codes in sessions[0].audio_codes.tolist()}) > 2
