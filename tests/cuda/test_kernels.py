"""The CUDA kernels against the plain MLX code beside them. Needs an NVIDIA GPU; skipped elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

import voicechat_mlx as vc
from fixtures.random_model import random_model
from voicechat_mlx.config import (
    AudioConfig,
    CharacterEncoderConfig,
    CodecConfig,
    EncoderConfig,
    JointConfig,
    MogHeadConfig,
    TextConfig,
    TtsConfig,
    VoiceChatConfig,
)
from voicechat_mlx.llm.mamba import Mamba2Mixer
from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.cache import arrays_of, begin_step, end_step
from voicechat_mlx.nn.conv import DepthwiseConv1d
from voicechat_mlx.nn.linear import product
from voicechat_mlx.nn.norms import OffsetRMSNorm, add_layer_norm, add_norm, add_rms_norm, layer_norm_silu
from voicechat_mlx.perception.rel_attention import RelPosMultiHeadAttention
from voicechat_mlx.precision import Precision
from voicechat_mlx.talker.backbone import TalkerAttention
from voicechat_mlx.talker.ear_tts import EarTts

pytestmark = pytest.mark.skipif(not cuda.available(), reason="needs MLX on an NVIDIA GPU")
TOLERANCE = 1e-5
"""Relative RMS in float32: both sides add the same few thousand products in another order."""
TEXT = TextConfig(
    hidden_size=512, intermediate_size=1024, num_hidden_layers=4, hybrid_override_pattern="M-*M", vocab_size=1024
)
TTS = TtsConfig(
    num_hidden_layers=7,
    sliding_window=40,
    character_encoder=CharacterEncoderConfig(),
    mog_head=MogHeadConfig(num_predictions=256),
)


def close(found: mx.array, expected: mx.array) -> None:
    found, expected = (np.array(x.astype(mx.float32), np.float64) for x in (found, expected))
    assert np.sqrt(((found - expected) ** 2).mean() / (expected**2).mean()) < TOLERANCE


def both_ways(monkeypatch: pytest.MonkeyPatch, run: Callable[[], list[mx.array]]) -> None:
    """`run` with the kernels and without."""
    fast = run()
    mx.eval(fast)
    monkeypatch.setattr(cuda, "available", lambda: False)
    plain = run()
    for found, expected in zip(fast, plain, strict=True):
        close(found, expected)


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


def test_rows_matmul(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = mx.random.normal((2, 1, 1152)), mx.random.normal((3456, 1152))
    both_ways(monkeypatch, lambda: [product(x, w), product(x[:, :, :512], mx.contiguous(w[:77, :512]))])


def test_add_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    post, pre = OffsetRMSNorm(1152, 1e-6), OffsetRMSNorm(1152, 1e-6)
    randomise(post), randomise(pre)
    x, y = mx.random.normal((2, 1, 1152)), mx.random.normal((2, 1, 1152))
    both_ways(monkeypatch, lambda: [*add_norm(x, y, post, pre), add_norm(x, y, post)[0]])


def test_norms_after_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, rms = nn.LayerNorm(1024), nn.RMSNorm(1024)
    randomise(layer), randomise(rms)
    x, y = mx.random.normal((1, 1, 1024)), mx.random.normal((1, 1, 1024))

    def run() -> list[mx.array]:
        halves = add_layer_norm(x, y, layer, half=True)
        return [*halves, *add_layer_norm(x, y, layer), layer_norm_silu(x, layer), *add_rms_norm(x, y, rms)]

    both_ways(monkeypatch, run)


@pytest.mark.parametrize("is_global", [True, False])
def test_talker_attention_over_a_window_that_wraps(monkeypatch: pytest.MonkeyPatch, is_global: bool) -> None:
    layer = TalkerAttention(TTS, is_global=is_global)
    randomise(layer)
    frames = mx.random.normal((60, 2, 1, 1152))

    def run() -> list[mx.array]:
        from voicechat_mlx.nn.cache import Timeline

        cache = layer.make_cache(2, mx.float32, Timeline())
        out = []
        for i in range(60):
            begin_step(cache, 1)
            out.append(layer(frames[i], cache, cache.mask(1)))
            end_step(cache, 1)
        return out

    both_ways(monkeypatch, run)


def test_nearest_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    talker = EarTts(TTS)
    randomise(talker, 0.5)
    point = mx.random.normal((512,))

    def run() -> list[mx.array]:
        return list(talker._quantise(point, mx.arange(31), range(9, 31)))

    both_ways(monkeypatch, run)


def test_relative_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = RelPosMultiHeadAttention(1024, 8, 70)
    randomise(layer)
    frames = mx.random.normal((80, 1, 1, 1024))

    def run() -> list[mx.array]:
        cache = layer.make_cache(1, mx.float32)
        return [layer(frames[i], cache) for i in range(80)]

    both_ways(monkeypatch, run)


@pytest.mark.parametrize(("bias", "with_silu", "gated", "size"), [(True, True, False, 4), (False, False, True, 9)])
def test_convolution_step(monkeypatch: pytest.MonkeyPatch, bias: bool, with_silu: bool, gated: bool, size: int) -> None:
    conv = DepthwiseConv1d(700, size, bias=bias, with_silu=with_silu, gated=gated)
    conv.weight = mx.random.normal(conv.weight.shape)
    conv.prepare()
    frames = mx.random.normal((12, 1, 1, 1400 if gated else 700))

    def run() -> list[mx.array]:
        cache = conv.make_cache(1, mx.float32)
        return [conv(frames[i], cache) for i in range(12)]

    both_ways(monkeypatch, run)


def test_mamba_step(monkeypatch: pytest.MonkeyPatch) -> None:
    mixer = Mamba2Mixer(TEXT)
    randomise(mixer)
    frames = mx.random.normal((12, 1, 1, 512))

    def run() -> list[mx.array]:
        cache = mixer.make_cache(1, mx.float32)
        return [mixer(frames[i], cache) for i in range(12)] + arrays_of(cache)

    both_ways(monkeypatch, run)


def test_a_whole_talk_gives_the_same_ids_and_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    audio = AudioConfig(
        encoder=EncoderConfig(n_layers=3, d_model=256, subsampling_conv_channels=32),
        joint=JointConfig(encoder_hidden=256),
        output_dim=512,
    )
    codec = CodecConfig(base_channels=32)
    config = VoiceChatConfig(text_config=TEXT, audio_config=audio, tts_config=TTS, codec_config=codec)
    model = random_model(config, Precision())
    pcm = (np.random.default_rng(0).normal(size=16000) * 0.1).astype(np.float32)

    def talk(compiled: bool) -> vc.Session:
        model.run.compiled = compiled
        model._voice_prompts.clear()
        model.run._stages.clear()
        session = vc.Session(model, "Hello.")
        for begin in range(0, len(pcm), 1280):
            session.push(pcm[begin : begin + 1280])
        session.finish()
        return session

    sessions = [talk(True), talk(False)]
    monkeypatch.setattr(cuda, "available", lambda: False)
    sessions += [talk(True), talk(False)]
    for session in sessions[1:]:
        assert session.text_tokens.tolist() == sessions[0].text_tokens.tolist()
        assert session.audio_codes.tolist() == sessions[0].audio_codes.tolist()
        assert session.transcript.ids == sessions[0].transcript.ids
