"""The two checkpoints that are timed: random weights in the published layout, made on the fly.

`tiny` is the fixture; `160m` keeps the real model's proportions at about a third of its widths and depths (160 M
parameters, of which the language model holds 69). Both are torch exports, the layout that the peer reads, and are
free of chance (no noise, a nucleus of one component), so that two programs must give the same ids and codes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx

from fixtures.make_tiny import make

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "160m": {
        "rnnt_blank_id": 1024,
        "text_config": {
            "hidden_size": 768,
            "intermediate_size": 2688,
            "num_hidden_layers": 14,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "mamba_num_heads": 32,
            "mamba_head_dim": 48,
            "ssm_state_size": 64,
            "n_groups": 4,
            "vocab_size": 8192,
            "hybrid_override_pattern": "M-M-M*-M-M-M*-",
        },
        "audio_config": {
            "encoder": {
                "n_layers": 8,
                "d_model": 384,
                "n_heads": 6,
                "subsampling_conv_channels": 96,
                "att_context_size": [[70, 0]],
                "pos_emb_max_len": 5000,
            },
            "decoder": {"pred_hidden": 256, "vocab_size": 1024},
            "joint": {"joint_hidden": 256, "encoder_hidden": 384, "pred_hidden": 256, "num_classes": 1024},
            "output_dim": 768,
        },
        "tts_config": {
            "hidden_size": 384,
            "intermediate_size": 1536,
            "num_hidden_layers": 10,
            "num_attention_heads": 6,
            "num_key_value_heads": 6,
            "head_dim": 64,
            "sliding_window": 7500,
            "sliding_window_pattern": 6,
            "query_pre_attn_scalar": 256,
            "latent_size": 192,
            "codebook_size": 512,
            "character_encoder": {
                "hidden_size": 384,
                "intermediate_size": 1536,
                "num_attention_heads": 6,
                "num_key_value_heads": 6,
                "head_dim": 64,
                "query_pre_attn_scalar": 256,
            },
            "mog_head": {"intermediate_size": 1536, "low_rank": 32, "num_predictions": 512},
        },
        "codec_config": {
            "base_channels": 96,
            "channel_multipliers": [1, 2, 4],
            "latent_dim": 192,
            "codebook_size": 512,
        },
    },
}
"""Name → what differs from the tiny fixture's config."""
WITHOUT_CHANCE = {"top_p": 1e-6, "noise_scale": 0.0}
SUBWORDS = 131_072
"""Entries that the peer expects in the flag tables, whatever the vocabulary."""
FLAG_TABLES = {
    "tts_model.tts_model.embed_subword.subword_flag_emb.is_continuation": (SUBWORDS + 1, 1),
    "tts_model.tts_model.embed_subword.bos_eos_emb.special_flags": (SUBWORDS, 0),
}
"""Name → (entries, what ids without a token get)."""


def make_checkpoint(size: str, folder: Path) -> Path:
    """Write the checkpoint named `size` into `folder` (0.6 GB in a few seconds for the larger one)."""
    overrides = dict(SIZES[size])
    overrides["tts_config"] = overrides.get("tts_config", {}) | WITHOUT_CHANCE
    make(folder, "torch-layout", **overrides)
    _lengthen_flag_tables(folder / "model.safetensors")
    _complete_config(folder)
    return folder


def _lengthen_flag_tables(path: Path) -> None:
    tensors = mx.load(str(path))
    for name, (entries, filling) in FLAG_TABLES.items():
        table = tensors[name]
        tensors[name] = mx.concatenate([table, mx.full((entries - table.size,), filling, dtype=table.dtype)])
    mx.eval(tensors)  # all of it, before the file is written anew
    mx.save_safetensors(str(path), tensors, {"format": "pt"})


def _complete_config(folder: Path) -> None:
    """Two keys that the peer needs and a torch export may lack."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = json.loads((folder / "rnnt_tokenizer" / "vocab.json").read_text(encoding="utf-8"))
    config["rnnt_vocabulary"] = sorted(vocabulary, key=vocabulary.__getitem__)
    config["text_config"]["use_bias"] = False
    path.write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")
