"""The sections of config.json, one dataclass each. Field names keep the checkpoint's spelling, defaults equal 11B."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from voicechat_mlx.config.checks import divides, require
from voicechat_mlx.config.parsing import only
from voicechat_mlx.config.ranges import (
    EXPONENT,
    FREQUENCIES,
    INDEX,
    NOT_NEGATIVE,
    NOT_NEGATIVE_OR_INFINITE,
    POSITIVE,
    SECONDS,
    SHARE,
    SMALL,
    SMALL_OR_NONE,
    within,
)

PUBLISHED_PATTERN = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Nemotron-H, the language model."""

    model_type: str = only("nemotron_h")
    hidden_size: int = 4480
    intermediate_size: int = 15680
    num_hidden_layers: int = within(SMALL, 56)
    num_attention_heads: int = 40
    num_key_value_heads: int = 8
    head_dim: int = 128
    mamba_num_heads: int = 128
    mamba_head_dim: int = 80
    ssm_state_size: int = 128
    conv_kernel: int = 4
    n_groups: int = 8
    use_conv_bias: bool = only(True)
    use_bias: bool = only(False)
    mamba_proj_bias: bool = only(False)
    mlp_bias: bool = only(False)
    attention_bias: bool = only(False)
    mlp_hidden_act: str = only("relu2")
    mamba_hidden_act: str = only("silu")
    layer_norm_epsilon: float = within(POSITIVE, 1e-5)
    vocab_size: int = 131072
    max_position_embeddings: int = 131072
    hybrid_override_pattern: str = PUBLISHED_PATTERN
    time_step_limit: tuple[float, ...] = within(NOT_NEGATIVE_OR_INFINITE, (0.0, math.inf))

    def __post_init__(self) -> None:
        pattern, layers = self.hybrid_override_pattern, self.num_hidden_layers
        require(set(pattern) <= set("M*-"), f"text_config.hybrid_override_pattern {pattern!r} may hold only M, * and -")
        require(
            len(pattern) == layers,
            f"text_config.hybrid_override_pattern has {len(pattern)} letters but num_hidden_layers is {layers}",
        )
        divides("text_config", self, "num_key_value_heads", "num_attention_heads")
        divides("text_config", self, "n_groups", "mamba_num_heads")
        limit = self.time_step_limit
        require(
            len(limit) == 2 and limit[0] <= limit[1] and limit[0] < math.inf,
            f"text_config.time_step_limit must be [low, high] with a finite low <= high, found {list(limit)}",
        )

    @property
    def mamba_width(self) -> int:
        """Channels of the mixer's inner stream: heads × head width."""
        return self.mamba_num_heads * self.mamba_head_dim

    @property
    def mamba_conv_width(self) -> int:
        """Channels through the mixer's convolution: x, B and C."""
        return self.mamba_width + 2 * self.n_groups * self.ssm_state_size


@dataclass(frozen=True, kw_only=True)
class PreprocessorConfig:
    """The log-mel frontend."""

    sample_rate: int = 16000
    features: int = within(FREQUENCIES, 128)
    n_fft: int = within(FREQUENCIES, 512)
    window_size: float = within(SECONDS, 0.025)
    window_stride: float = within(SECONDS, 0.01)
    window: str = only("hann")
    preemph: float = 0.97
    log: bool = only(True)
    normalize: str = only("NA", "none", "NONE")
    log_zero_guard_value: float = within(POSITIVE, 2.0**-24)
    mag_power: float = only(2.0)
    pad_to: int = only(0)

    def __post_init__(self) -> None:
        where, window, hop = "audio_config.preprocessor", self.window_length, self.hop_length
        require(hop > 0, f"{where}.window_stride {self.window_stride} is less than one sample")
        require(0 < window <= self.n_fft, f"{where}.window_size is {window} samples; expected 1 to n_fft {self.n_fft}")

    @property
    def window_length(self) -> int:
        """Samples under the window."""
        return round(self.window_size * self.sample_rate)

    @property
    def hop_length(self) -> int:
        """Samples from one mel frame to the next."""
        return round(self.window_stride * self.sample_rate)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The FastConformer speech encoder."""

    feat_in: int = 128
    n_layers: int = within(SMALL, 24)
    d_model: int = 1024
    n_heads: int = 8
    ff_expansion_factor: int = 4
    subsampling: str = only("dw_striding")
    subsampling_factor: int = only(8)
    subsampling_conv_channels: int = 256
    conv_kernel_size: int = 9
    causal_downsampling: bool = only(True)
    conv_context_size: str = only("causal")
    conv_norm_type: str = only("layer_norm")
    self_attention_model: str = only("rel_pos")
    att_context_style: str = only("chunked_limited")
    att_context_size: tuple[int, ...] = within(INDEX, (70, 0))
    pos_emb_max_len: int = 5000
    use_bias: bool = only(False)
    xscaling: bool = only(False)

    def __post_init__(self) -> None:
        divides("audio_config.encoder", self, "n_heads", "d_model")
        require(self.d_model % 2 == 0, f"audio_config.encoder.d_model must be even, found {self.d_model}")
        context = self.att_context_size
        require(
            len(context) == 2 and context[0] >= 0 and context[1] == 0,
            f"audio_config.encoder.att_context_size must be [left >= 0, 0] (a causal window), found {list(context)}",
        )

    @property
    def left_context(self) -> int:
        """Earlier frames that a frame attends to, beside itself."""
        return self.att_context_size[0]


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The RNNT prediction network."""

    pred_hidden: int = 640
    pred_rnn_layers: int = within(SMALL, 2)
    vocab_size: int = 1024
    blank_as_pad: bool = only(True)


@dataclass(frozen=True, kw_only=True)
class JointConfig:
    """The RNNT joint network."""

    joint_hidden: int = 640
    activation: str = only("relu")
    encoder_hidden: int = 1024
    pred_hidden: int = 640
    num_classes: int = 1024


@dataclass(frozen=True, kw_only=True)
class AudioConfig:
    """Everything between the microphone and the language model."""

    preprocessor: PreprocessorConfig = field(default_factory=PreprocessorConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    joint: JointConfig = field(default_factory=JointConfig)
    output_dim: int = 4480
    max_symbols: int = within(SMALL, 10)


@dataclass(frozen=True, kw_only=True)
class CharacterEncoderConfig:
    """The talker's character-aware subword encoder (a T5Gemma encoder)."""

    hidden_size: int = 1152
    intermediate_size: int = 4608
    num_hidden_layers: int = within(SMALL, 1)
    num_attention_heads: int = 16
    num_key_value_heads: int = 16
    head_dim: int = 72
    rms_norm_eps: float = within(POSITIVE, 1e-6)
    query_pre_attn_scalar: float = within(POSITIVE, 256)
    attn_logit_softcapping: float = within(POSITIVE, 50)
    rope_base: float = within(POSITIVE, 1e4)
    char_vocab_size: int = 257


@dataclass(frozen=True, kw_only=True)
class MogHeadConfig:
    """The talker's mixture-of-Gaussians head."""

    intermediate_size: int = 4608
    low_rank: int = 64
    min_log_std: float = within(EXPONENT, -4)
    num_layers: int = within(SMALL, 3)
    num_predictions: int = 1024
    eps: float = within(POSITIVE, 1e-6)


@dataclass(frozen=True, kw_only=True)
class TtsConfig:
    """EAR-TTS, the talker."""

    hidden_size: int = 1152
    intermediate_size: int = 4608
    num_hidden_layers: int = within(SMALL, 28)
    num_attention_heads: int = 16
    num_key_value_heads: int = 16
    head_dim: int = 72
    sliding_window: int = 7500
    sliding_window_pattern: int = 6
    rms_norm_eps: float = within(POSITIVE, 1e-6)
    query_pre_attn_scalar: float = within(POSITIVE, 256)
    rope_global_base_freq: float = within(POSITIVE, 1e6)
    rope_local_base_freq: float = within(POSITIVE, 1e4)
    latent_size: int = 512
    num_quantizers: int = within(SMALL, 31)
    codebook_size: int = 1024
    num_delay_speech_tokens: int = within(INDEX, 2)
    num_iterations: int = within(SMALL, 8)
    guidance_scale: float = 0.2
    top_p: float = within(SHARE, 0.95)
    noise_scale: float = within(NOT_NEGATIVE, 0.001)
    exponent: float = within(POSITIVE, 3.0)
    use_gated_fusion_for_text_audio: bool = only(True)
    use_subword_flag_emb: bool = only(True)
    use_bos_eos_emb: bool = only(True)
    use_audio_prompt_frozen_projection: bool = only(True, False)
    audio_prompt_duration: float = within(SECONDS, 3.0)
    character_encoder: CharacterEncoderConfig = field(default_factory=CharacterEncoderConfig)
    mog_head: MogHeadConfig = field(default_factory=MogHeadConfig)

    def __post_init__(self) -> None:
        divides("tts_config", self, "num_key_value_heads", "num_attention_heads")
        characters = self.character_encoder
        divides("tts_config.character_encoder", characters, "num_key_value_heads", "num_attention_heads")
        for where, head_dim in (("", self.head_dim), ("character_encoder.", characters.head_dim)):
            require(head_dim > 0 and head_dim % 2 == 0, f"tts_config.{where}head_dim must be even, found {head_dim}")
        require(
            self.character_encoder.hidden_size == self.hidden_size,
            f"tts_config.character_encoder.hidden_size is {self.character_encoder.hidden_size} "
            f"but tts_config.hidden_size is {self.hidden_size}",
        )


@dataclass(frozen=True, kw_only=True)
class CodecConfig:
    """The audio codec."""

    sample_rate: int = 22050
    base_channels: int = 384
    channel_multipliers: tuple[int, ...] = (1, 2, 4)
    downsample_rates: tuple[int, ...] = (7, 7, 9)
    blocks_per_stage: int = within(SMALL_OR_NONE, 3)
    block_kernel_size: int = 7
    latent_dim: int = 512
    n_fft: int = 16
    hop_length: int = 4
    num_quantizers: int = within(SMALL, 31)
    codebook_size: int = 1024

    def __post_init__(self) -> None:
        require(
            len(self.channel_multipliers) == len(self.downsample_rates),
            "codec_config.channel_multipliers and downsample_rates must have the same length",
        )
        require(bool(self.downsample_rates), "codec_config.downsample_rates must name at least one stage")
        require(
            self.n_fft % self.hop_length == 0,
            f"codec_config.hop_length {self.hop_length} must divide n_fft {self.n_fft}",
        )

    @property
    def samples_per_frame(self) -> int:
        """4·7·7·9 = 1764 samples, 80 ms at 22.05 kHz."""
        return self.hop_length * math.prod(self.downsample_rates)

    @property
    def stft_channels(self) -> int:
        """Real and imaginary parts of n_fft / 2 + 1 bins: 18."""
        return 2 * (self.n_fft // 2 + 1)

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each stage, widest last."""
        return tuple(self.base_channels * multiplier for multiplier in self.channel_multipliers)
