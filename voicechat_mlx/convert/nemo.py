"""The publisher's config.json, a whole NeMo training run, in the words of the published schema.

Unusual: the mapping is data. Of some three hundred keys those are taken that say how to compute; a key that would
change the computing in a way the schema has no word for must have the one value that is implemented, or is refused.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from voicechat_mlx.config import (
    MODEL_TYPE,
    CharacterEncoderConfig,
    CodecConfig,
    DecoderConfig,
    EncoderConfig,
    JointConfig,
    MogHeadConfig,
    PreprocessorConfig,
    TtsConfig,
    VoiceChatConfig,
)
from voicechat_mlx.errors import ConfigError

STT, SPEECH, RNNT = "model.stt.model", "model.speech_generation.model", "_rnnt_merge_info"
TTS = f"{SPEECH}.tts_config"
CHARACTERS = f"{TTS}.cas_config.backbone_config.encoder"
SECTIONS = (
    (f"{STT}.perception.preprocessor", "audio_config.preprocessor", PreprocessorConfig),
    (f"{STT}.perception.encoder", "audio_config.encoder", EncoderConfig),
    (f"{RNNT}.decoder_config", "audio_config.decoder", DecoderConfig),
    (f"{RNNT}.decoder_config.prednet", "audio_config.decoder", DecoderConfig),
    (f"{RNNT}.joint_config", "audio_config.joint", JointConfig),
    (f"{RNNT}.joint_config.jointnet", "audio_config.joint", JointConfig),
    (TTS, "tts_config", TtsConfig),
    (f"{TTS}.backbone_config", "tts_config", TtsConfig),
    (CHARACTERS, "tts_config.character_encoder", CharacterEncoderConfig),
    (f"{TTS}.mog_head_config", "tts_config.mog_head", MogHeadConfig),
    (f"{SPEECH}.codec_config", "codec_config", CodecConfig),
)
"""Sections of which every key that the schema's section knows is taken under its own name. All must be there."""
RENAMED = (
    ("data.source_sample_rate", "input_sample_rate"),
    ("data.target_sample_rate", "output_sample_rate"),
    ("data.frame_length", "frame_duration"),
    (f"{STT}.duplex_function_channel_weight", "function_channel_weight"),
    (f"{STT}.inference_pad_boost", "inference_pad_boost"),
    (f"{STT}.inference_bos_boost", "inference_bos_boost"),
    (f"{STT}.inference_eos_boost", "inference_eos_boost"),
    (f"{STT}.perception.output_dim", "audio_config.output_dim"),
    (f"{RNNT}.decoder_config.vocab_size", "rnnt_blank_id"),
    (f"{RNNT}.joint_config.vocabulary", "rnnt_vocabulary"),
    (f"{TTS}.backbone_config.rope_theta", "tts_config.rope_global_base_freq"),
    (f"{CHARACTERS}.rope_theta", "tts_config.character_encoder.rope_base"),
    (f"{SPEECH}.inference_guidance_scale", "tts_config.guidance_scale"),
    (f"{SPEECH}.inference_top_p_or_k", "tts_config.top_p"),
    (f"{SPEECH}.inference_noise_scale", "tts_config.noise_scale"),
    (f"{SPEECH}.inference_num_iterations", "tts_config.num_iterations"),
    ("model.speech_generation.data.audio_prompt_duration", "tts_config.audio_prompt_duration"),
    ("model.speech_generation.data.target_sample_rate", "codec_config.sample_rate"),
    (f"{SPEECH}.codec_config.base_hidden_size", "codec_config.base_channels"),
    (f"{SPEECH}.codec_config.channel_mult", "codec_config.channel_multipliers"),
    (f"{SPEECH}.codec_config.rates", "codec_config.downsample_rates"),
    (f"{SPEECH}.codec_config.num_blocks", "codec_config.blocks_per_stage"),
    (f"{SPEECH}.codec_config.kernel_size", "codec_config.block_kernel_size"),
    (f"{SPEECH}.codec_config.latent_size", "codec_config.latent_dim"),
    ("model.inference_speaker_name", "speaker"),
)
"""Path in the publisher's file → path in the schema, where the file has it."""
TOKENS = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "pad_token_id"}
"""Keys of the speech generator that name a token → the schema's key for its id."""
ONLY = (
    (f"{STT}.duplex_text_channel_weight", (1, None)),
    (f"{STT}.duplex_user_channel_weight", (1, None)),
    (f"{STT}.use_function_head", (True, None)),
    (f"{STT}.predict_user_text", (False, None)),
    (f"{STT}.fuse_method", (None,)),
    (f"{STT}.perception.preprocessor.log_zero_guard_type", ("add", None)),
    (f"{STT}.perception.preprocessor.frame_splicing", (1, None)),
    (f"{STT}.perception.encoder.untie_biases", (True, None)),
    (f"{STT}.perception.encoder.reduction", (None,)),
    (f"{TTS}.backbone_type", ("gemma3_text", None)),
    (f"{TTS}.context_hidden_size", (None,)),
    (f"{TTS}.cas_config.backbone_type", ("t5gemma", None)),
    (f"{SPEECH}.codec_config.groups", (1, None)),
)
"""Path → the values that are implemented; None stands for an absent key too."""


def is_nemo(values: Mapping[str, Any]) -> bool:
    """Whether a parsed config.json is the publisher's."""
    model = values.get("model")
    return isinstance(model, dict) and {"stt", "speech_generation"} <= model.keys()


def published_values(
    nemo: Mapping[str, Any], text_config: Mapping[str, Any], characters: int, vocabulary: Mapping[str, int]
) -> dict[str, Any]:
    """The publisher's config.json → values of the published schema, not yet checked against one another.

    `characters`: rows of the character embedding, which the file does not state. `vocabulary`: token → id. Raises
    ConfigError for a missing section, a value that is not implemented, or a token that the tokenizer lacks.
    """
    values: dict[str, Any] = {"model_type": MODEL_TYPE, "text_config": dict(text_config)}
    for path, allowed in ONLY:
        found = _at(nemo, path)
        if found not in allowed:
            shown = " or ".join(repr(value) for value in allowed)
            raise ConfigError(f"config.json: {path} is {found!r}; only {shown} is implemented")
    for path, target, cls in SECTIONS:
        section = _at(nemo, path)
        if not isinstance(section, dict):
            raise ConfigError(f"config.json has no section {path}; take the config.json that belongs to the weights")
        known = {field.name for field in dataclasses.fields(cls)}
        for key in sorted(known & section.keys()):
            _put(values, f"{target}.{key}", section[key])
    for path, target in RENAMED:
        _put(values, target, _at(nemo, path))
    for key, target in TOKENS.items():
        token = _at(nemo, f"{SPEECH}.{key}")
        if token is not None and token not in vocabulary:
            raise ConfigError(f"config.json: {SPEECH}.{key} is {token!r}, which tokenizer.json does not have")
        _put(values, target, vocabulary.get(token) if token is not None else None)
    _put(values, "tts_config.character_encoder.char_vocab_size", characters)
    return values


def check_frame_length(nemo: Mapping[str, Any], config: VoiceChatConfig) -> None:
    """The publisher's file states the codec's samples per frame, which the schema derives. Raises ConfigError."""
    stated, derived = _at(nemo, f"{SPEECH}.codec_config.wav_to_token_ratio"), config.codec_config.samples_per_frame
    if stated not in (None, derived):
        raise ConfigError(
            f"config.json: {SPEECH}.codec_config.wav_to_token_ratio is {stated} but rates and hop_length give {derived}"
        )


def spelled_out(config: VoiceChatConfig) -> dict[str, Any]:
    """A configuration as config.json, every key of the schema with its value, except those that say nothing."""
    values = dataclasses.asdict(config)
    del values["unknown"], values["quantization"]
    text, encoder = values["text_config"], values["audio_config"]["encoder"]
    if text["time_step_limit"] == (0.0, float("inf")):
        del text["time_step_limit"]  # JSON has no infinity
    encoder["att_context_size"] = [encoder["att_context_size"]]
    for token in ("pad", "bos", "eos"):
        if values[f"inference_{token}_boost"] == 0.0:
            del values[f"inference_{token}_boost"]
    kept = {key: value for key, value in values.items() if value is not None}
    plain: dict[str, Any] = json.loads(json.dumps(kept))  # tuples become lists
    return plain


def _at(values: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path; None where there is none."""
    found: Any = values
    for key in path.split("."):
        if not isinstance(found, Mapping) or key not in found:
            return None
        found = found[key]
    return found


def _put(values: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path, making sections on the way; None sets nothing."""
    if value is None:
        return
    *sections, key = path.split(".")
    for section in sections:
        values = values.setdefault(section, {})
    values[key] = value
