"""Damaged tensors are named when they are loaded; zeros that training can leave are not damage."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tests.unit.loading import refusal
from voicechat_mlx.health import MAY_BE_ZERO, fault

FUNCTION_HEAD = "stt_model.function_head.weight"


@pytest.mark.parametrize(
    "name",
    [
        FUNCTION_HEAD,
        "stt_model.llm.norm_f.weight",
        "stt_model.perception.encoder.pre_encode.conv.0.weight",
        "stt_model.perception.encoder.layers.0.norm_out.weight",
        "stt_model.rnnt_decoder.prediction.embed.weight",
        "tts_model.audio_prompt_latents.Aria",
        "tts_model.tts_model.rvq_embs",
        "tts_model.tts_model.mog_head.low_mat",
        "tts_model.tts_model.embed_subword.bos_eos_emb.special_emb.weight",
        "tts_model.audio_codec.prvq.mus_list.3",
    ],
)
@pytest.mark.parametrize(("value", "trouble"), [(0.0, "holds only zeros"), (float("nan"), "holds NaN or infinity")])
def test_a_damaged_tensor_is_named(tiny_fp32, name, value, trouble) -> None:
    message = refusal(tiny_fp32, lambda tensors: tensors.update({name: mx.full(tensors[name].shape, value)}))
    assert message.startswith(f"{name} {trouble}")


def test_a_damaged_packed_tensor_is_named(tiny_4bit) -> None:
    for suffix in ("weight", "scales"):
        name = f"stt_model.lm_head.{suffix}"
        message = refusal(tiny_4bit, lambda tensors, name=name: tensors.update({name: mx.zeros_like(tensors[name])}))
        assert message.startswith(f"{name} holds only zeros")


def test_one_infinite_number_in_a_large_tensor_is_found() -> None:
    values = np.ones(5_000_000, np.float32)
    values[4_999_999] = np.inf
    assert fault("lm_head.weight", mx.array(values)) == "holds NaN or infinity"


def test_large_float16_numbers_do_not_count_as_infinite() -> None:
    assert fault("lm_head.weight", mx.full((1000,), 65504.0, mx.float16)) is None


@pytest.mark.parametrize(
    "name",
    [
        "perception.proj.bias",
        "perception.encoder.layers.0.self_attn.pos_bias_u",
        "rnnt_decoder.prediction.dec_rnn.lstm.bias_hh_l1",
        "llm.layers.0.mixer.dt_bias",
        "llm.layers.0.mixer.A_log",
        "llm.layers.0.mixer.conv1d.bias",
        "talker.backbone.layers.0.input_layernorm.weight",
        "talker.backbone.layers.0.self_attn.q_norm.weight",
        "talker.backbone.norm.weight",
        "talker.mog_head.mlp_stack.3.weight",
        "talker.gated_fusion_audio_text.gate",
        "talker.gated_fusion_audio_text.residual_scale",
        "talker.null_emb",
    ],
)
def test_zeros_are_accepted_where_training_can_leave_them(name) -> None:
    assert MAY_BE_ZERO.fullmatch(name)
    assert fault(name, mx.zeros(4)) is None


def test_an_index_table_of_zeros_is_not_damaged() -> None:
    assert fault("control_codes", mx.zeros(3, mx.int32)) is None
