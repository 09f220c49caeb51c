"""A whole config.json.

Real files carry dozens of training keys that change nothing here: unknown keys are kept aside
(`VoiceChatConfig.unknown`), while a known key with a value that is not implemented is a ConfigError naming it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from voicechat_mlx.config.checks import faults_named, require
from voicechat_mlx.config.parsing import only, parse
from voicechat_mlx.config.quantization import Quantization, parse_quantization
from voicechat_mlx.config.ranges import INDEX, SECONDS, within
from voicechat_mlx.config.sections import AudioConfig, CodecConfig, TextConfig, TtsConfig
from voicechat_mlx.errors import ConfigError

MODEL_TYPE = "nemotron_voicechat"
SAME_VALUE = (
    ("rnnt_blank_id", "audio_config.decoder.vocab_size"),
    ("audio_config.joint.num_classes", "audio_config.decoder.vocab_size"),
    ("audio_config.joint.pred_hidden", "audio_config.decoder.pred_hidden"),
    ("audio_config.joint.encoder_hidden", "audio_config.encoder.d_model"),
    ("audio_config.encoder.feat_in", "audio_config.preprocessor.features"),
    ("audio_config.output_dim", "text_config.hidden_size"),
    ("tts_config.latent_size", "codec_config.latent_dim"),
    ("tts_config.num_quantizers", "codec_config.num_quantizers"),
    ("tts_config.codebook_size", "codec_config.codebook_size"),
    ("output_sample_rate", "codec_config.sample_rate"),
    ("input_sample_rate", "audio_config.preprocessor.sample_rate"),
)
"""Pairs of keys that say the same thing twice."""


@dataclass(frozen=True, kw_only=True)
class VoiceChatConfig:
    """A whole config.json."""

    model_type: str = only(MODEL_TYPE)
    text_config: TextConfig = field(default_factory=TextConfig)
    audio_config: AudioConfig = field(default_factory=AudioConfig)
    tts_config: TtsConfig = field(default_factory=TtsConfig)
    codec_config: CodecConfig = field(default_factory=CodecConfig)
    bos_token_id: int = within(INDEX, 1)
    eos_token_id: int = within(INDEX, 2)
    pad_token_id: int = within(INDEX, 12)
    silence_token_id: int = within(INDEX, 11)
    call_start_token_id: int = within(INDEX, 20)
    call_end_token_id: int = within(INDEX, 21)
    response_end_token_id: int = within(INDEX, 22)
    rnnt_blank_id: int = within(INDEX, 1024)
    input_sample_rate: int = 16000
    output_sample_rate: int = 22050
    frame_duration: float = within(SECONDS, 0.08)
    function_channel_weight: float = 2.0
    speaker: str = only("Aria")
    rnnt_vocabulary: tuple[str, ...] | None = None
    default_system_prompt: str | None = None
    inference_pad_boost: float = 0.0
    inference_bos_boost: float = 0.0
    inference_eos_boost: float = 0.0
    quantization: Quantization | None = None
    unknown: dict[str, Any] = field(default_factory=dict)
    """Keys of the file that change nothing here, by dotted path."""

    def __post_init__(self) -> None:
        for path, other in SAME_VALUE:
            value, expected = _at(self, path), _at(self, other)
            require(value == expected, f"config.json: {path} is {value} but {other} is {expected}")
        for name in (part.name for part in fields(self) if part.name.endswith("_token_id")):
            id, vocab_size = getattr(self, name), self.text_config.vocab_size
            require(0 <= id < vocab_size, f"config.json: {name} is {id} but text_config.vocab_size is {vocab_size}")
        for rate, name, samples in (
            (self.input_sample_rate, "input_sample_rate", self.input_samples_per_frame),
            (self.output_sample_rate, "output_sample_rate", self.codec_config.samples_per_frame),
        ):
            require(
                round(self.frame_duration * rate) == samples,
                f"config.json: frame_duration · {name} is {self.frame_duration * rate:g} samples, "
                f"but the networks move by {samples}",
            )
        require(
            self.voice_prompt_frames > 0,
            f"config.json: tts_config.audio_prompt_duration {self.tts_config.audio_prompt_duration} is less than one "
            f"frame of {self.frame_duration} s",
        )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> VoiceChatConfig:
        """The parsed JSON object → config. Raises ConfigError."""
        if values.get("model_type") != MODEL_TYPE:
            found = values.get("model_type", "no model_type")
            raise ConfigError(f"config.json: model_type is {found!r}; only {MODEL_TYPE!r} checkpoints can be run")
        values = _with_flat_context(values)
        maps = [values.pop(key, None) for key in ("quantization", "quantization_config")]
        values.pop("unknown", None)
        unknown: dict[str, Any] = {}
        known = parse(cls, values, "", unknown)
        return cls(**known, quantization=parse_quantization([m for m in maps if m is not None]), unknown=unknown)

    @classmethod
    def from_file(cls, path: Path) -> VoiceChatConfig:
        """config.json → config. Raises ConfigError with the path, also when the file is missing, empty or not JSON."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{path} does not exist; a checkpoint folder needs config.json") from None
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is not readable JSON ({error}); download the checkpoint again") from None
        if not isinstance(values, dict):
            raise ConfigError(f"{path} must hold a JSON object, found {type(values).__name__}")
        with faults_named(path):
            return cls.from_dict(values)

    @property
    def silent_token_ids(self) -> frozenset[int]:
        """Ids that are not part of the text: PAD, silence, BOS and EOS."""
        return frozenset((self.pad_token_id, self.silence_token_id, self.bos_token_id, self.eos_token_id))

    @property
    def input_samples_per_frame(self) -> int:
        """160 · 8 = 1280 samples, 80 ms at 16 kHz."""
        return self.audio_config.preprocessor.hop_length * self.audio_config.encoder.subsampling_factor

    @property
    def voice_prompt_frames(self) -> int:
        """Whole code frames in the voice prompt: 3 s · 22 050 // 1764 = 37."""
        seconds = self.tts_config.audio_prompt_duration
        return round(seconds * self.output_sample_rate) // self.codec_config.samples_per_frame


def _at(config: object, path: str) -> Any:
    """`"a.b"` → config.a.b."""
    for name in path.split("."):
        config = getattr(config, name)
    return config


def _with_flat_context(values: dict[str, Any]) -> dict[str, Any]:
    """`att_context_size` may be [70, 0] or [[70, 0]]; a copy with the flat form."""
    audio = values.get("audio_config")
    if not isinstance(audio, dict) or not isinstance(audio.get("encoder"), dict):
        return dict(values)
    encoder = dict(audio["encoder"])
    context = encoder.get("att_context_size")
    if isinstance(context, list) and len(context) == 1 and isinstance(context[0], list):
        encoder["att_context_size"] = context[0]
    return {**values, "audio_config": {**audio, "encoder": encoder}}
