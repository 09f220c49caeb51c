"""A tiny checkpoint as the publisher ships its own: one float32 file of torch tensors and a NeMo training config.

Unusual: the config is written out key by key from the tiny one, so that the converter's mapping is checked against it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fixtures.make_tiny import make
from fixtures.tiny_config import rnnt_pieces, tiny_config


def make_publisher(root: Path, **overrides: Any) -> tuple[Path, Path]:
    """→ the source folder, and the folder of its language model with tokenizer.json and config.json."""
    source = make(root / "publisher", "torch-layout", **overrides)
    base = root / "base"
    base.mkdir()
    (source / "tokenizer.json").rename(base / "tokenizer.json")
    (base / "tokenizer_config.json").write_text('{"add_bos_token": true}\n', encoding="utf-8")
    config = tiny_config(overrides)
    write_json(base / "config.json", base_config(config["text_config"]))
    write_json(source / "config.json", nemo_config(config))
    (source / "rnnt_tokenizer" / "vocab.json").rename(source / "rnnt_tokenizer" / "tokenizer.vocab")
    return source, base


def write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")


def base_config(text: dict[str, Any]) -> dict[str, Any]:
    """The language model's own config.json, with keys that mean nothing here and one of the older spellings."""
    values = {**text, "architectures": ["NemotronHForCausalLM"], "bos_token_id": 1, "chunk_size": 128}
    values |= {"rms_norm_eps": values.pop("layer_norm_epsilon"), "use_bias": False}
    return values | {"time_step_limit": [0.0, float("inf")], "torch_dtype": "bfloat16"}


def nemo_config(config: dict[str, Any]) -> dict[str, Any]:
    """The sections that matter, among some that do not."""
    audio, tts, codec = config["audio_config"], config["tts_config"], config["codec_config"]
    characters, mog, prediction, joint = tts["character_encoder"], tts["mog_head"], audio["decoder"], audio["joint"]
    [context] = audio["encoder"]["att_context_size"]
    jointnet = ("joint_hidden", "activation", "encoder_hidden", "pred_hidden")
    stt = {
        "pretrained_llm": "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
        "duplex_text_channel_weight": 1.0,
        "duplex_user_channel_weight": 1.0,
        "duplex_function_channel_weight": 1.5,
        "use_function_head": True,
        "predict_user_text": False,
        "inference_pad_boost": 0.25,
        "inference_eos_boost": None,
        "perception": {
            "_target_": "AudioPerceptionModule",
            "preprocessor": {**audio["preprocessor"], "_target_": "Preprocessor", "frame_splicing": 1},
            "encoder": {
                **audio["encoder"],
                "_target_": "ConformerEncoder",
                "att_context_size": context,
                "untie_biases": True,
                "dropout": 0.1,
            },
            "output_dim": audio["output_dim"],
        },
        "optimizer": {"lr": 5e-5},
    }
    backbone = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    backbone += ("head_dim", "sliding_window", "sliding_window_pattern", "query_pre_attn_scalar")
    spelling = {key: characters[key] for key in characters if key not in ("rope_base", "char_vocab_size")}
    sampling = {"inference_guidance_scale": 0.3, "inference_top_p_or_k": 0.9, "inference_noise_scale": 0.002}
    speech = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<SPECIAL_12>",
        **sampling,
        "tts_config": {
            "backbone_type": "gemma3_text",
            "backbone_config": {**{key: tts[key] for key in backbone}, "rope_theta": 5e5, "attention_dropout": 0.1},
            "cas_config": {
                "backbone_type": "t5gemma",
                "backbone_config": {"is_encoder_decoder": False, "encoder": {**spelling, "use_cache": False}},
            },
            "mog_head_config": mog,
            "context_hidden_size": None,
            "disable_eos_prediction": True,
            **{key: tts[key] for key in ("latent_size", "num_quantizers", "codebook_size", "exponent")},
            "num_delay_speech_tokens": 2,
        },
        "codec_config": {
            "base_hidden_size": codec["base_channels"],
            "channel_mult": codec["channel_multipliers"],
            "rates": codec["downsample_rates"],
            "num_blocks": codec["blocks_per_stage"],
            "kernel_size": codec["block_kernel_size"],
            "latent_size": codec["latent_dim"],
            "n_fft": 16,
            "hop_length": 4,
            "groups": 1,
            "num_quantizers": codec["num_quantizers"],
            "codebook_size": codec["codebook_size"],
            "wav_to_token_ratio": 1764,
        },
    }
    data = {"source_sample_rate": 16000, "target_sample_rate": 22050, "frame_length": 0.08}
    return {
        "trainer": {"devices": 8},
        "exp_manager": {"explicit_log_dir": "/results"},
        "data": data,
        "model": {
            "inference_speaker_name": "Aria",
            "stt": {"model": stt, "data": {"source_sample_rate": 16000}},
            "speech_generation": {
                "model": speech,
                "data": {**data, "audio_prompt_duration": tts["audio_prompt_duration"]},
            },
        },
        "_rnnt_merge_info": {
            "rnnt_vocab_size": prediction["vocab_size"],
            "decoder_config": {
                "prednet": {"pred_hidden": prediction["pred_hidden"], "pred_rnn_layers": prediction["pred_rnn_layers"]},
                "vocab_size": prediction["vocab_size"],
                "blank_as_pad": True,
            },
            "joint_config": {
                "num_classes": prediction["vocab_size"],
                "vocabulary": rnnt_pieces(prediction["vocab_size"]),
                "jointnet": {key: joint[key] for key in jointnet},
            },
        },
    }
