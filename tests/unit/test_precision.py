"""Which parameters become which dtype."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import voicechat_mlx as vc
from tests.unit.loading import loaded
from voicechat_mlx.errors import ConfigError
from voicechat_mlx.names import DTYPES
from voicechat_mlx.precision import precision


def test_float32_makes_every_number_float32_and_every_index_int32(tiny_torch_layout) -> None:
    assert {array.dtype for array in loaded(tiny_torch_layout).values()} == {mx.float32, mx.int32}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "bfloat16",
            {
                "perception.proj.weight": mx.bfloat16,
                "embed_tokens.weight": mx.bfloat16,
                "llm.layers.0.mixer.norm.weight": mx.bfloat16,
                "llm.layers.0.mixer.A_log": mx.float32,
                "llm.layers.0.mixer.D": mx.float32,
                "llm.layers.0.mixer.dt_bias": mx.float32,
                "talker.backbone.norm.weight": mx.bfloat16,
                "rnnt_joint.enc.weight": mx.float32,
                "codec.decoder.layers.0.weight": mx.float32,
                "codec_silence_tokens": mx.int32,
            },
        ),
        (
            "mixed",
            {
                "talker.backbone.norm.weight": mx.bfloat16,
                "talker.embed_code.weight": mx.bfloat16,
                "talker.mog_head.proj_mus.weight": mx.float32,
                "talker.mog_head.low_mat": mx.float32,
                "talker.rvq_embs": mx.float32,
                "embed_tokens.weight": mx.bfloat16,
            },
        ),
    ],
)
def test_each_precision_leaves_in_float32_what_needs_it(tiny_fp32, name: str, expected: dict[str, mx.Dtype]) -> None:
    """Recurrence, codec and RNNT always; in `mixed` also what chooses the codes."""
    parameters = loaded(tiny_fp32, precision=precision(name))
    for parameter, dtype in expected.items():
        assert parameters[parameter].dtype == dtype, parameter


def test_a_talk_in_each_precision(tiny_fp32) -> None:
    """Also where a talker in bfloat16 meets a mixture in float32."""
    sound = np.random.default_rng(0).normal(size=4 * 1280).astype(np.float32) * 0.1
    for name in DTYPES:
        result = vc.generate(vc.load(tiny_fp32, dtype=name), sound, extra_decoding_seconds=0.0)
        assert result.audio_codes.shape == (len(result.text_tokens), 31), name


def test_automatic_precision_is_bfloat16_only_on_a_gpu_and_never_for_the_talker() -> None:
    on_gpu = mx.default_device().type == mx.DeviceType.gpu
    assert precision("auto").perception_llm == (mx.bfloat16 if on_gpu else mx.float32)
    assert precision("auto").talker == mx.float32


def test_an_unknown_precision_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match="'fp64' is unknown; choose one of auto, float32, mixed, bfloat16"):
        precision("fp64")
