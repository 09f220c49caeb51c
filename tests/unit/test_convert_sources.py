"""What may be converted: the publisher's config in the schema's words, and every source that is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from fixtures.make_tiny import make
from tests.bench.sparse_publisher import real_shapes
from tests.publisher import make_publisher
from tests.unit.test_convert import edit
from voicechat_mlx.config import VoiceChatConfig
from voicechat_mlx.convert import Options, convert, plan_conversion
from voicechat_mlx.errors import CheckpointError, InputError

PLAIN = Options()


@pytest.fixture
def publisher(tmp_path) -> tuple[Path, Path]:
    return make_publisher(tmp_path)


def change_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(json.dumps(values), encoding="utf-8")


def refusal(source: Path, tokenizer: Path | None = None) -> str:
    with pytest.raises(InputError) as error:
        plan_conversion(source, PLAIN, tokenizer)
    assert "\n" not in str(error.value)
    return str(error.value)


# The publisher's config


def test_every_key_that_computes_arrives_under_its_published_name(publisher) -> None:
    source, base = publisher
    config = VoiceChatConfig.from_dict(json.loads(plan_conversion(source, PLAIN, base).config_json()))
    text, encoder, tts, codec = config.text_config, config.audio_config.encoder, config.tts_config, config.codec_config
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id, config.silence_token_id) == (1, 2, 12, 11)
    assert (config.rnnt_blank_id, config.audio_config.max_symbols) == (64, 10)
    assert config.rnnt_vocabulary is not None and config.rnnt_vocabulary[:2] == ("<unk>", "<pad>")
    assert (config.function_channel_weight, config.inference_pad_boost, config.inference_eos_boost) == (1.5, 0.25, 0.0)
    assert (text.hidden_size, text.hybrid_override_pattern, text.layer_norm_epsilon) == (64, "M-M*-M", 1e-5)
    assert text.time_step_limit == (0.0, float("inf"))
    assert (encoder.att_context_size, encoder.n_heads, encoder.pos_emb_max_len) == ((6, 0), 3, 23)
    assert (tts.guidance_scale, tts.top_p, tts.noise_scale, tts.num_iterations) == (0.3, 0.9, 0.002, 8)
    assert (tts.rope_global_base_freq, tts.rope_local_base_freq, tts.sliding_window_pattern) == (5e5, 1e4, 3)
    assert (tts.query_pre_attn_scalar, tts.character_encoder.query_pre_attn_scalar) == (18, 26)
    assert (tts.character_encoder.char_vocab_size, tts.mog_head.low_rank, tts.audio_prompt_duration) == (257, 6, 3.0)
    assert (codec.base_channels, codec.channel_multipliers, codec.downsample_rates) == (20, (1, 2, 3), (7, 7, 9))
    assert (codec.blocks_per_stage, codec.block_kernel_size, codec.latent_dim) == (3, 7, 24)
    assert config.unknown == {}


def test_config_json_is_plain_json_without_infinity(publisher) -> None:
    source, base = publisher
    text = plan_conversion(source, PLAIN, base).config_json()
    json.loads(text, parse_constant=lambda word: pytest.fail(word))
    assert "time_step_limit" not in text


def test_a_folder_of_a_converted_checkpoint_will_do_for_the_tokenizer(publisher, tmp_path) -> None:
    source, base = publisher
    converted = convert(plan_conversion(source, PLAIN, base), tmp_path / "out")
    assert plan_conversion(source, PLAIN, converted).config_json() == plan_conversion(source, PLAIN, base).config_json()


def test_the_real_files_tensors_are_the_ones_that_were_counted_in_it() -> None:
    # 44,382,749,892 bytes of file, 1632 tensors of which 6 hold integers: what people report who looked inside
    entries = real_shapes(VoiceChatConfig())
    numbers = {name: mx.zeros(shape).size for name, (_, shape) in entries.items()}
    integers = [name for name, (dtype, _) in entries.items() if dtype == "I64"]
    data = sum(numbers[name] * (8 if name in integers else 4) for name in entries)
    assert (len(entries), len(integers)) == (1632, 6)
    assert 0 < 44_382_749_892 - data < 300_000  # the header: names, shapes and offsets
    assert sum(name.startswith("stt_model.") for name in entries) == 997


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.stt.model.duplex_text_channel_weight", 0.5),
        ("model.stt.model.fuse_method", "gated_gmu"),
        ("model.stt.model.perception.encoder.untie_biases", False),
        ("model.speech_generation.model.codec_config.groups", 2),
        ("model.speech_generation.model.codec_config.wav_to_token_ratio", 882),
        ("model.stt.model.perception.encoder.xscaling", True),
        ("model.inference_speaker_name", "Bob"),
        ("model.speech_generation.model.eos_token", "<end>"),
        ("model.speech_generation.model.tts_config.mog_head_config", None),
    ],
)
def test_what_would_compute_otherwise_is_refused_by_name(publisher, path, value) -> None:
    source, base = publisher

    def change(values: dict[str, Any]) -> None:
        *sections, key = path.split(".")
        for section in sections:
            values = values[section]
        values[key] = value

    change_json(source / "config.json", change)
    message = refusal(source, base)
    assert path.rpartition(".")[2].removeprefix("inference_").removesuffix("_name") in message


# text_config


def test_without_the_language_models_config_the_defaults_are_taken_and_checked(publisher) -> None:
    source, base = publisher
    (base / "config.json").unlink()
    message = refusal(source, base)
    assert "text_config was taken from the defaults" in message and "give --tokenizer" in message


@pytest.mark.parametrize(
    ("key", "value", "tensor"),
    [
        ("vocab_size", 400, "embed_tokens.weight says 389"),
        ("hybrid_override_pattern", "M-M-*M", "the kind of each layer says M-M*-M"),
        ("intermediate_size", 300, "llm.layers.1.mixer.up_proj.weight says 320"),
        ("mamba_num_heads", 4, "llm.layers.0.mixer.A_log says 6"),
        ("ssm_state_size", 21, "llm.layers.0.mixer.conv1d.bias says 272"),  # 192 + 2 · 2 · 20
        ("num_key_value_heads", 1, "llm.layers.3.mixer.k_proj.weight says 64"),
    ],
)
def test_a_language_models_config_that_the_tensors_contradict_is_refused(publisher, key, value, tensor) -> None:
    source, base = publisher
    change_json(base / "config.json", lambda values: values.update({key: value}))
    message = refusal(source, base)
    assert tensor in message and str(base / "config.json") in message


def test_a_config_of_something_else_in_the_tokenizers_folder_is_refused(publisher) -> None:
    source, base = publisher
    (base / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    assert "describes no Nemotron-H language model" in refusal(source, base)


# Sources that lack something


def test_a_source_without_a_tokenizer_takes_it_from_the_folder_that_is_given(tiny_bf16, publisher, tmp_path) -> None:
    source = make(tmp_path / "source", "bf16")
    (source / "tokenizer.json").unlink()
    assert "tokenizer.json is missing; give --tokenizer" in refusal(source)
    assert "is not a folder" in refusal(source, tmp_path / "none")
    out = convert(plan_conversion(source, PLAIN, publisher[1]), tmp_path / "out")
    assert (out / "tokenizer.json").read_bytes() == (tiny_bf16 / "tokenizer.json").read_bytes()


def test_another_models_tokenizer_is_refused(tmp_path) -> None:
    source = make(tmp_path / "source", "bf16")

    def forget_a_character(values: dict[str, Any]) -> None:
        values["model"]["vocab"]["!!"] = values["model"]["vocab"].pop("!")

    change_json(source / "tokenizer.json", forget_a_character)
    assert "255 tokens of one character" in refusal(source)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "config.json does not exist"),
        ("", "not readable JSON"),
        ("[]", "must hold a JSON object"),
        ('{"model_type": "llama"}', "model_type is 'llama'"),
        ('{"model": {}}', "model_type is 'no model_type'"),
    ],
)
def test_a_source_without_a_usable_config_is_refused(tmp_path, config, message) -> None:
    source = make(tmp_path, "bf16")
    (source / "config.json").unlink() if config is None else (source / "config.json").write_text(config)
    assert message in refusal(source)


def test_every_tensor_that_cannot_be_placed_is_named(tmp_path) -> None:
    strange = {f"tts_model.audio_prompt_latents.Voice{number}": mx.ones((1, 37, 56)) for number in range(12)}

    def damage(tensors: dict[str, mx.array]) -> None:
        tensors |= strange
        for layer in range(4):
            del tensors[f"tts_model.tts_model.backbone.layers.{layer}.input_layernorm.weight"]
            del tensors[f"tts_model.tts_model.backbone.layers.{layer}.self_attn.q_norm.weight"]
            del tensors[f"tts_model.tts_model.backbone.layers.{layer}.self_attn.k_proj.weight"]
        tensors["stt_model.lm_head.weight"] = mx.ones((3, 64))

    message = refusal(edit(make(tmp_path, "fp32"), damage))
    assert all(name in message for name in strange)
    assert all(f"backbone.layers.{layer}.self_attn.q_norm.weight" in message for layer in range(4))
    assert "missing: " in message and "not of this model: " in message
    assert "stt_model.lm_head.weight is (3, 64); expected (389, 64)" in message


@pytest.mark.parametrize(("number", "trouble"), [(0.0, "holds only zeros"), (float("nan"), "holds NaN or infinity")])
def test_a_damaged_tensor_is_named_and_nothing_is_left_behind(tmp_path, number, trouble) -> None:
    def damage(tensors: dict[str, mx.array]) -> None:
        tensors["stt_model.perception.proj.weight"] = mx.full((64, 60), number)

    source = edit(make(tmp_path / "source", "fp32"), damage)
    with pytest.raises(CheckpointError, match=rf"stt_model\.perception\.proj\.weight {trouble}"):
        convert(plan_conversion(source, PLAIN), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
