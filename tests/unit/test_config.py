"""config.json: the published values, both spellings of what has two, and every kind of value that is refused."""

from __future__ import annotations

import json
import math
from copy import deepcopy

import pytest

from fixtures.tiny_config import TINY
from voicechat_mlx.config import Quantization, VoiceChatConfig, faults_named
from voicechat_mlx.errors import ConfigError

ENTRY = {"group_size": 64, "bits": 4}


def parsed(**changes) -> VoiceChatConfig:
    """The tiny config with dotted keys set: `parsed(**{"text_config.head_dim": 3})`."""
    values = deepcopy(TINY)
    for path, value in changes.items():
        *sections, key = path.split(".")
        target = values
        for section in sections:
            target = target[section]
        target[key] = value
    return VoiceChatConfig.from_dict(values)


def refusal(**changes) -> str:
    with pytest.raises(ConfigError) as error:
        parsed(**changes)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_defaults_are_the_published_model() -> None:
    config = VoiceChatConfig.from_dict({"model_type": "nemotron_voicechat"})
    text, encoder = config.text_config, config.audio_config.encoder
    # the text: attention at layers 14, 21, 30, 39 of 56
    assert [index for index, letter in enumerate(text.hybrid_override_pattern) if letter == "*"] == [14, 21, 30, 39]
    assert len(text.hybrid_override_pattern) == text.num_hidden_layers == 56
    assert text.mamba_width == 128 * 80
    assert text.mamba_conv_width == 128 * 80 + 2 * 8 * 128
    assert (encoder.n_layers, encoder.d_model, encoder.n_heads, encoder.left_context) == (24, 1024, 8, 70)
    assert (config.tts_config.hidden_size, config.tts_config.num_hidden_layers) == (1152, 28)
    assert config.codec_config.samples_per_frame == 1764
    assert config.codec_config.stft_channels == 18
    assert config.codec_config.widths == (384, 768, 1536)
    assert config.input_samples_per_frame == 1280
    assert config.voice_prompt_frames == 37
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id, config.silence_token_id) == (1, 2, 12, 11)
    assert (config.rnnt_blank_id, config.audio_config.max_symbols) == (1024, 10)
    assert config.quantization is None


def test_the_tiny_config_fills_every_field_it_names() -> None:
    config = VoiceChatConfig.from_dict(deepcopy(TINY))
    assert config.audio_config.joint.joint_hidden == TINY["audio_config"]["joint"]["joint_hidden"]
    assert config.tts_config.mog_head.low_rank == TINY["tts_config"]["mog_head"]["low_rank"]
    assert set(config.unknown) == {"architectures", "audio_config.preprocessor.dither"}


@pytest.mark.parametrize("spelling", [[70, 0], [[70, 0]]])
def test_the_attention_window_may_be_flat_or_nested(spelling) -> None:
    assert parsed(**{"audio_config.encoder.att_context_size": spelling}).audio_config.encoder.left_context == 70


@pytest.mark.parametrize("window", [[70, 1], [-1, 0], [70], [], [70, 0, 0], [[70, 0], [35, 0]], "70", None])
def test_a_window_that_is_not_causal_or_not_a_pair_is_refused(window) -> None:
    assert "att_context_size" in refusal(**{"audio_config.encoder.att_context_size": window})


def test_a_missing_time_step_limit_means_no_limit() -> None:
    assert parsed().text_config.time_step_limit == (0.0, math.inf)
    assert parsed(**{"text_config.time_step_limit": [0.0, "inf"]}).text_config.time_step_limit == (0.0, math.inf)
    assert parsed(**{"text_config.time_step_limit": [0.001, 0.1]}).text_config.time_step_limit == (0.001, 0.1)


def test_unknown_keys_change_nothing_and_are_kept_by_their_path() -> None:
    config = parsed(**{"trainer": {"lr": 1}, "tts_config.dropout": 0.1})
    assert config.unknown["trainer"] == {"lr": 1}
    assert config.unknown["tts_config.dropout"] == 0.1


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("speaker", "Bob"),
        ("speaker", None),
        ("text_config.model_type", "llama"),
        ("text_config.attention_bias", True),
        ("text_config.use_conv_bias", False),
        ("text_config.hybrid_override_pattern", "M-M*-E"),
        ("text_config.hybrid_override_pattern", "M-M*"),
        ("text_config.num_key_value_heads", 3),
        ("text_config.n_groups", 4),
        ("audio_config.preprocessor.normalize", "per_feature"),
        ("audio_config.preprocessor.window", "hamming"),
        ("audio_config.encoder.subsampling_factor", 4),
        ("audio_config.encoder.xscaling", True),
        ("audio_config.encoder.use_bias", True),
        ("audio_config.encoder.conv_norm_type", "batch_norm"),
        ("audio_config.encoder.n_heads", 7),
        ("audio_config.joint.activation", "tanh"),
        ("tts_config.use_subword_flag_emb", False),
        ("tts_config.use_gated_fusion_for_text_audio", False),
        ("tts_config.sliding_window", 0),
        ("codec_config.hop_length", 3),
    ],
)
def test_a_value_that_is_not_implemented_is_refused_by_its_path(path, value) -> None:
    section, _, key = path.rpartition(".")
    message = refusal(**{path: value})
    assert key in message and section in message


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("text_config.hidden_size", "64"),
        ("text_config.hidden_size", 64.5),
        ("text_config.hidden_size", True),
        ("text_config", [1]),
        ("tts_config.top_p", "high"),
        ("codec_config.downsample_rates", 7),
        ("rnnt_vocabulary", [1, 2]),
        ("rnnt_vocabulary", "abc"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_its_path(path, value) -> None:
    assert path in refusal(**{path: value})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("rnnt_blank_id", 63),
        ("audio_config.joint.num_classes", 63),
        ("audio_config.joint.encoder_hidden", 61),
        ("audio_config.joint.pred_hidden", 35),
        ("audio_config.encoder.feat_in", 80),
        ("audio_config.output_dim", 65),
        ("tts_config.latent_size", 25),
        ("tts_config.num_quantizers", 30),
        ("tts_config.codebook_size", 30),
        ("output_sample_rate", 24000),
        ("input_sample_rate", 8000),
    ],
)
def test_two_keys_that_say_the_same_thing_must_agree(path, value) -> None:
    message = refusal(**{path: value})
    assert path in message and str(value) in message


def test_the_frame_duration_must_be_what_the_networks_move_by() -> None:
    # 0.04 s are 640 samples at 16 kHz; the encoder moves by 160 · 8
    message = refusal(frame_duration=0.04)
    assert "frame_duration · input_sample_rate is 640 samples, but the networks move by 1280" in message


@pytest.mark.parametrize("model_type", [None, "", "nemotron_h", "moshi", 3])
def test_another_model_type_is_refused_with_what_was_found(model_type) -> None:
    assert f"model_type is {model_type!r}; only 'nemotron_voicechat'" in refusal(model_type=model_type)


# --- the quantisation map ---


def test_the_map_gives_group_size_and_bits_by_module() -> None:
    config = parsed(quantization={**ENTRY, "stt_model.lm_head": dict(ENTRY), "stt_model.embed_tokens": {"bits": 8}})
    assert config.quantization == Quantization(
        group_size=64, bits=4, modules={"stt_model.lm_head": (64, 4), "stt_model.embed_tokens": (64, 8)}
    )


def test_true_takes_the_defaults_and_false_leaves_a_module_alone() -> None:
    config = parsed(quantization={"group_size": 32, "bits": 8, "a": True, "b": False})
    assert config.quantization is not None
    assert config.quantization.modules == {"a": (32, 8)}


@pytest.mark.parametrize("key", ["quantization", "quantization_config"])
def test_either_name_of_the_map_will_do(key) -> None:
    config = parsed(**{key: {**ENTRY, "stt_model.lm_head": dict(ENTRY)}})
    assert config.quantization is not None
    assert config.quantization.modules == {"stt_model.lm_head": (64, 4)}


def test_two_maps_that_disagree_are_refused() -> None:
    first, second = {**ENTRY, "a": dict(ENTRY)}, {**ENTRY, "b": dict(ENTRY)}
    assert "disagree" in refusal(quantization=first, quantization_config=second)


@pytest.mark.parametrize(
    "value",
    [[1], "4bit", {"group_size": 48, "bits": 4}, {"group_size": 64, "bits": 7}, {**ENTRY, "mode": "mxfp4"},
     {**ENTRY, "stt_model.lm_head": {"bits": 1}}],
)  # fmt: skip
def test_a_map_that_is_not_implemented_is_refused(value) -> None:
    assert "quantization" in refusal(quantization=value)


def test_a_file_is_read_like_a_dictionary(tmp_path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY), encoding="utf-8")
    assert VoiceChatConfig.from_file(path) == parsed()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "moshi"}, "model_type is 'moshi'"),
        ({"speaker": "Bob"}, "speaker is 'Bob'"),
        ({"text_config": {"n_groups": 3}}, "text_config.n_groups 3 must divide"),
        ({"text_config": {"hidden_size": "64"}}, "text_config.hidden_size must be int"),
        ({"rnnt_blank_id": 7}, "rnnt_blank_id is 7 but"),
        ({"quantization": [1]}, "quantization must be an object"),
    ],
)
def test_whatever_is_wrong_in_a_file_its_path_is_told_once(tmp_path, change, message) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**TINY, **change}), encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        VoiceChatConfig.from_file(path)
    assert str(error.value).startswith(f"{path}: {message}")
    assert str(error.value).count("config.json") == 1


def test_a_fault_that_names_its_file_already_is_left_alone(tmp_path) -> None:
    with pytest.raises(ConfigError, match=f"^{tmp_path} is odd$"), faults_named(tmp_path):
        raise ConfigError(f"{tmp_path} is odd")


# --- numbers that cannot be meant ---


@pytest.mark.parametrize(
    "path",
    [
        "text_config.hidden_size",
        "text_config.vocab_size",
        "text_config.mamba_head_dim",
        "text_config.conv_kernel",
        "audio_config.preprocessor.features",
        "audio_config.preprocessor.n_fft",
        "audio_config.encoder.n_layers",
        "audio_config.encoder.conv_kernel_size",
        "audio_config.decoder.pred_rnn_layers",
        "audio_config.joint.joint_hidden",
        "audio_config.max_symbols",
        "tts_config.num_iterations",
        "tts_config.sliding_window_pattern",
        "tts_config.character_encoder.num_hidden_layers",
        "tts_config.mog_head.num_predictions",
        "codec_config.hop_length",
        "codec_config.block_kernel_size",
    ],
)
@pytest.mark.parametrize("value", [0, -1, 10**12, 1e300])
def test_a_size_is_one_or_more_and_not_beyond_reason(path, value) -> None:
    assert f"{path} must be from 1 to " in refusal(**{path: value})


@pytest.mark.parametrize("path", ["codec_config.downsample_rates", "codec_config.channel_multipliers"])
@pytest.mark.parametrize("value", [[7, 7, 0], [7, -7, 9], [7, 7, 10**12]])
def test_a_list_of_sizes_holds_sizes(path, value) -> None:
    assert f"{path} must be from 1 to 10000000" in refusal(**{path: value})


def test_a_codec_without_stages_is_refused() -> None:
    none = {"codec_config.downsample_rates": [], "codec_config.channel_multipliers": []}
    assert "codec_config.downsample_rates must name at least one stage" in refusal(**none)


def test_a_token_id_may_be_zero_but_not_negative() -> None:
    assert parsed(pad_token_id=0).pad_token_id == 0
    assert "pad_token_id must be from 0" in refusal(pad_token_id=-1)


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("text_config.layer_norm_epsilon", [0, -1e-5, 1e-300]),
        ("tts_config.mog_head.eps", [0, -1]),
        ("tts_config.mog_head.min_log_std", [1e4, -1e4]),
        ("tts_config.rope_local_base_freq", [0, -1]),
        ("tts_config.character_encoder.rope_base", [0, -1]),
        ("tts_config.query_pre_attn_scalar", [0, -256]),
        ("tts_config.character_encoder.attn_logit_softcapping", [0]),
        ("tts_config.exponent", [0, -3]),
        ("tts_config.top_p", [0, -0.1, 1.5]),
        ("tts_config.noise_scale", [-0.001]),
        ("tts_config.guidance_scale", [10**400]),
        ("tts_config.audio_prompt_duration", [0, -3, 1e9]),
        ("audio_config.preprocessor.log_zero_guard_value", [0]),
        ("audio_config.preprocessor.window_stride", [0, -0.01]),
        ("frame_duration", [0, -0.08]),
        ("function_channel_weight", [1e39]),
    ],
)
def test_a_number_outside_its_range_is_refused_by_its_path(path, values) -> None:
    for value in [*values, math.nan, math.inf, "nan", "-inf"]:
        assert f"{path} must be " in refusal(**{path: value})


def test_the_ends_of_the_ranges_are_accepted() -> None:
    config = parsed(**{"tts_config.top_p": 1, "tts_config.noise_scale": 0, "codec_config.blocks_per_stage": 0})
    assert (config.tts_config.top_p, config.tts_config.noise_scale, config.codec_config.blocks_per_stage) == (1, 0, 0)


@pytest.mark.parametrize("limit", [[0.1, 0.001], ["inf", "inf"], [-1, 1], ["nan", 1], [0.1], [0, 1, 2]])
def test_a_time_step_limit_that_is_no_interval_is_refused(limit) -> None:
    assert "text_config.time_step_limit must be " in refusal(**{"text_config.time_step_limit": limit})


def test_a_window_that_the_transform_cannot_hold_is_refused() -> None:
    # at 16 kHz; the transform takes 512 samples
    message = refusal(**{"audio_config.preprocessor.window_size": 0.04})
    assert "window_size is 640 samples; expected 1 to n_fft 512" in message
    assert "window_stride must be " in refusal(**{"audio_config.preprocessor.window_stride": 1e-5})


def test_a_voice_prompt_of_no_whole_frame_is_refused() -> None:
    assert "0.079 is less than one frame of 0.08 s" in refusal(**{"tts_config.audio_prompt_duration": 0.079})


@pytest.mark.parametrize("depth", [*range(850, 1000, 5), 100_000])
def test_json_that_is_nested_too_deeply_is_refused_in_one_line(tmp_path, depth) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY)[:-1] + ', "speaker": ' + "[" * depth + "]" * depth + "}", encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        VoiceChatConfig.from_file(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)
