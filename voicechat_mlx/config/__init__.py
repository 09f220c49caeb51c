"""config.json of a VoiceChat checkpoint as frozen dataclasses."""

from voicechat_mlx.config.checks import faults_named
from voicechat_mlx.config.quantization import Quantization
from voicechat_mlx.config.sections import (
    PUBLISHED_PATTERN,
    AudioConfig,
    CharacterEncoderConfig,
    CodecConfig,
    DecoderConfig,
    EncoderConfig,
    JointConfig,
    MogHeadConfig,
    PreprocessorConfig,
    TextConfig,
    TtsConfig,
)
from voicechat_mlx.config.voicechat import MODEL_TYPE, VoiceChatConfig

__all__ = [
    "MODEL_TYPE",
    "PUBLISHED_PATTERN",
    "AudioConfig",
    "CharacterEncoderConfig",
    "CodecConfig",
    "DecoderConfig",
    "EncoderConfig",
    "JointConfig",
    "MogHeadConfig",
    "PreprocessorConfig",
    "Quantization",
    "TextConfig",
    "TtsConfig",
    "VoiceChatConfig",
    "faults_named",
]
