"""Quantised modules: scales, biases and the map in config.json must agree, and then the numbers are right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten

from fixtures.make_tiny import quantised_modules
from voicechat_mlx.checkpoint import Checkpoint
from voicechat_mlx.config import Quantization
from voicechat_mlx.errors import CheckpointError
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.precision import Precision
from voicechat_mlx.weights import load_weights, survey

HEAD = "stt_model.lm_head"
MIXER = "stt_model.llm.layers.0.mixer.in_proj"


def load(folder: Path, *, tensors=None, quantization="as in the file") -> VoiceChat:
    checkpoint = Checkpoint.open(folder)
    config = checkpoint.config
    if quantization != "as in the file":
        config = replace(config, quantization=quantization)
    values = checkpoint.tensors()
    if tensors:
        tensors(values)
    model = VoiceChat(config)
    load_weights(model, values, config, precision=Precision())
    return model


def refusal(folder: Path, **options) -> str:
    with pytest.raises(CheckpointError) as error:
        load(folder, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def the_map(folder: Path) -> Quantization:
    quantization = Checkpoint.open(folder).config.quantization
    assert quantization is not None
    return quantization


def without(folder: Path, module: str) -> Quantization:
    quantization = the_map(folder)
    others = {path: entry for path, entry in quantization.modules.items() if path != module}
    return replace(quantization, modules=others)


def test_exactly_the_published_modules_are_quantised(tiny_4bit) -> None:
    model = load(tiny_4bit)
    kinds = {path: type(module) for path, module in model.named_modules() if hasattr(module, "scales")}
    expected = {path.removeprefix("stt_model.") for path in quantised_modules("M-M*-M")}
    assert kinds.keys() == expected
    # three Mamba layers of two, two MLPs of two, one attention of four, and three outside the layers
    assert len(expected) == 3 * 2 + 2 * 2 + 4 + 3
    assert kinds.pop("embed_tokens") is nn.QuantizedEmbedding
    assert set(kinds.values()) == {nn.QuantizedLinear}


def test_a_quantised_weight_stands_for_the_original_to_a_step(tiny_4bit, tiny_bf16) -> None:
    head = load(tiny_4bit).lm_head
    original = Checkpoint.open(tiny_bf16).tensors()[f"{HEAD}.weight"].astype(mx.float32)
    restored = mx.dequantize(head.weight, head.scales, head.biases, 64, 4)
    step = mx.repeat(mx.abs(head.scales), 64, axis=1)
    # half a step for rounding to a level, and less than another half because the levels are moved so that zero is one
    assert mx.all(mx.abs(restored - original) <= step)


def test_scales_are_cast_to_the_precision_of_their_network(tiny_4bit) -> None:
    assert {array.dtype for _, array in tree_flatten(load(tiny_4bit).lm_head.parameters())} == {mx.uint32, mx.float32}


@pytest.mark.parametrize("dtype", [mx.float16, mx.float32, mx.bfloat16])
def test_scales_of_every_float_type_are_accepted(tiny_4bit, dtype) -> None:
    def cast(tensors) -> None:
        for suffix in ("scales", "biases"):
            tensors[f"{HEAD}.{suffix}"] = tensors[f"{HEAD}.{suffix}"].astype(dtype)

    load(tiny_4bit, tensors=cast)


@pytest.mark.parametrize("suffix", ["scales", "biases"])
def test_a_module_that_lacks_scales_or_biases_is_named_with_what_it_lacks(tiny_4bit, suffix) -> None:
    message = refusal(tiny_4bit, tensors=lambda tensors: tensors.pop(f"{MIXER}.{suffix}"))
    assert message == f"{MIXER} is quantised but {MIXER}.{suffix} is missing; download the checkpoint again"


def test_a_quantised_module_that_the_map_does_not_list_is_named(tiny_4bit) -> None:
    message = refusal(tiny_4bit, quantization=without(tiny_4bit, MIXER))
    assert message.startswith(f"{MIXER} has scales but config.json's quantization map does not list it")


def test_a_listed_module_that_is_not_quantised_is_named(tiny_4bit, tiny_bf16) -> None:
    plain = Checkpoint.open(tiny_bf16).tensors()[f"{MIXER}.weight"]

    def unpack(tensors) -> None:
        tensors[f"{MIXER}.weight"] = plain
        del tensors[f"{MIXER}.scales"], tensors[f"{MIXER}.biases"]

    message = refusal(tiny_4bit, tensors=unpack)
    assert message.startswith(f"config.json lists {MIXER} as quantised but it has no scales")
    load(tiny_4bit, tensors=unpack, quantization=without(tiny_4bit, MIXER))


def test_a_listed_module_that_the_model_does_not_have_is_named(tiny_4bit) -> None:
    quantization = the_map(tiny_4bit)
    listed = {**quantization.modules, "stt_model.llm.layers.9.mixer.in_proj": (64, 4)}
    message = refusal(tiny_4bit, quantization=replace(quantization, modules=listed))
    assert "lists stt_model.llm.layers.9.mixer.in_proj as quantised but the model has no" in message


def test_scales_without_any_map_are_refused(tiny_4bit) -> None:
    assert "does not list it" in refusal(tiny_4bit, quantization=None)


def test_a_map_that_names_no_module_holds_for_every_module_with_scales(tiny_4bit) -> None:
    load(tiny_4bit, quantization=Quantization(group_size=64, bits=4))


@pytest.mark.parametrize(("entry", "wrong"), [((64, 8), "weight is (389, 8)"), ((32, 4), "scales is (389, 1)")])
def test_group_size_and_bits_must_match_the_shapes(tiny_4bit, entry, wrong) -> None:
    # 64 inputs: 8 bits would need (389, 16) words, groups of 32 would need (389, 2) scales
    quantization = the_map(tiny_4bit)
    message = refusal(tiny_4bit, quantization=replace(quantization, modules={**quantization.modules, HEAD: entry}))
    assert f"{HEAD}.{wrong}; expected" in message


def test_one_module_may_have_its_own_group_size_and_bits(tiny_4bit, tiny_bf16) -> None:
    plain = Checkpoint.open(tiny_bf16).tensors()[f"{HEAD}.weight"]

    def repack(tensors) -> None:
        weight, scales, biases = mx.quantize(plain, 32, 8)
        tensors |= {f"{HEAD}.weight": weight, f"{HEAD}.scales": scales, f"{HEAD}.biases": biases}

    quantization = the_map(tiny_4bit)
    mixed = replace(quantization, modules={**quantization.modules, HEAD: (32, 8)})
    head = load(tiny_4bit, tensors=repack, quantization=mixed).lm_head
    assert (head.group_size, head.bits) == (32, 8)


def test_a_packed_weight_must_be_packed(tiny_4bit) -> None:
    def widen(tensors) -> None:
        tensors[f"{HEAD}.weight"] = tensors[f"{HEAD}.weight"].astype(mx.int32)

    assert f"{HEAD}.weight holds int32; a packed weight is uint32" in refusal(tiny_4bit, tensors=widen)


def test_scales_of_something_that_cannot_be_quantised_are_unexpected(tiny_fp32) -> None:
    name = "stt_model.llm.norm_f.scales"
    message = refusal(tiny_fp32, tensors=lambda tensors: tensors.update({name: mx.ones(3)}))
    assert f"1 tensor is unexpected: {name}" in message


def test_the_report_counts_what_packed_weights_stand_for(tiny_4bit, tiny_bf16) -> None:
    counts = []
    for folder in (tiny_4bit, tiny_bf16):
        checkpoint = Checkpoint.open(folder)
        report = survey(VoiceChat(checkpoint.config), checkpoint.tensors(), checkpoint.config)
        counts.append(report.networks["llm"].parameters)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("suffix", ["scales", "biases"])
@pytest.mark.parametrize("dtype", [mx.int32, mx.uint32])
def test_scales_and_biases_that_are_integers_are_refused(tiny_4bit, suffix, dtype) -> None:
    name = f"{HEAD}.{suffix}"
    message = refusal(tiny_4bit, tensors=lambda tensors: tensors.update({name: mx.ones(tensors[name].shape, dtype)}))
    assert message == f"{name} holds {str(dtype).rpartition('.')[2]}; expected floating point numbers"
