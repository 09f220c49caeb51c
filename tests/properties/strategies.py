"""Random small configurations, signals and cuts."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fixtures.tiny_weights import PIECE_CLASSES
from tests.models import Float32, speech

FRAME = 1280
CODEC_SHAPES = [
    (16, 4, [7, 7, 9]),
    (16, 4, [21, 21]),
    (8, 4, [441]),
    (12, 6, [49, 6]),
    (8, 2, [2, 21, 21]),
    (24, 4, [9, 49]),
]
"""n_fft, hop and rates, 1764 samples a frame each."""


@st.composite
def text_configs(draw: st.DrawFn) -> dict[str, Any]:
    """Every pattern of one to five layers, odd widths and head counts, grouped queries."""
    pattern = draw(st.text("M*-", min_size=1, max_size=5))
    key_heads, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return {
        "hidden_size": draw(st.integers(3, 24)),
        "intermediate_size": draw(st.integers(1, 30)),
        "num_hidden_layers": len(pattern),
        "hybrid_override_pattern": pattern,
        "num_attention_heads": key_heads * draw(st.integers(1, 3)),
        "num_key_value_heads": key_heads,
        "head_dim": draw(st.integers(1, 9)),
        "mamba_num_heads": groups * draw(st.integers(1, 3)),
        "mamba_head_dim": draw(st.integers(1, 6)),
        "ssm_state_size": draw(st.integers(1, 7)),
        "conv_kernel": draw(st.integers(1, 5)),
        "n_groups": groups,
        "vocab_size": draw(st.integers(384, 400)),
    }


@st.composite
def audio_configs(draw: st.DrawFn, hidden: int) -> dict[str, Any]:
    """Windows of 0 to 9 earlier frames, kernels of 1 to 9, any number of mel bins; odd head widths."""
    heads, head_dim = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    d_model = heads * head_dim * (1 + heads * head_dim % 2)
    features, pieces = draw(st.integers(3, 128)), draw(st.integers(9, 40))
    pred_hidden = draw(st.integers(PIECE_CLASSES + 1, 14))
    return {
        "preprocessor": {"features": features},
        "encoder": {
            "feat_in": features,
            "n_layers": draw(st.integers(1, 3)),
            "d_model": d_model,
            "n_heads": heads,
            "ff_expansion_factor": draw(st.integers(1, 4)),
            "subsampling_conv_channels": draw(st.integers(1, 6)),
            "conv_kernel_size": draw(st.integers(1, 9)),
            "att_context_size": draw(st.sampled_from([[0, 0], [1, 0], [[3, 0]], [9, 0], [70, 0]])),
        },
        "decoder": {"pred_hidden": pred_hidden, "pred_rnn_layers": draw(st.integers(1, 3)), "vocab_size": pieces},
        "joint": {
            "joint_hidden": draw(st.integers(PIECE_CLASSES + 1, 14)),
            "encoder_hidden": d_model,
            "pred_hidden": pred_hidden,
            "num_classes": pieces,
        },
        "output_dim": hidden,
        "max_symbols": draw(st.integers(1, 10)),
    }


@st.composite
def tts_configs(draw: st.DrawFn) -> dict[str, Any]:
    """Windows shorter than the voice prompt and longer than the talk, all layers global or none, few or many books."""
    key_heads, character_key_heads, hidden = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(2, 20))
    return {
        "hidden_size": hidden,
        "intermediate_size": draw(st.integers(1, 24)),
        "num_hidden_layers": draw(st.integers(1, 4)),
        "num_attention_heads": key_heads * draw(st.integers(1, 3)),
        "num_key_value_heads": key_heads,
        "head_dim": 2 * draw(st.integers(1, 5)),
        "sliding_window": draw(st.sampled_from([1, 2, 3, 7, 40])),
        "sliding_window_pattern": draw(st.integers(1, 5)),
        "latent_size": draw(st.integers(1, 12)),
        "num_quantizers": draw(st.sampled_from([1, 2, 5, 31])),
        "codebook_size": draw(st.integers(2, 40)),
        "num_iterations": draw(st.integers(1, 9)),
        "audio_prompt_duration": draw(st.sampled_from([0.08, 0.16, 0.5, 1.0])),
        "character_encoder": {
            "hidden_size": hidden,
            "intermediate_size": draw(st.integers(1, 20)),
            "num_hidden_layers": draw(st.integers(1, 2)),
            "num_attention_heads": character_key_heads * draw(st.integers(1, 2)),
            "num_key_value_heads": character_key_heads,
            "head_dim": 2 * draw(st.integers(1, 5)),
        },
        "mog_head": {
            "intermediate_size": draw(st.integers(1, 20)),
            "low_rank": draw(st.integers(1, 5)),
            "num_layers": draw(st.integers(1, 3)),
            "num_predictions": draw(st.integers(1, 20)),
        },
    }


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Overrides for `tests.models.build`: sizes that fit together and are otherwise unrelated."""
    text, tts = draw(text_configs()), draw(tts_configs())
    audio = draw(audio_configs(text["hidden_size"]))
    n_fft, hop_length, rates = draw(st.sampled_from(CODEC_SHAPES))
    return {
        "rnnt_blank_id": audio["decoder"]["vocab_size"],
        "text_config": text,
        "audio_config": audio,
        "tts_config": tts,
        "codec_config": {
            "base_channels": draw(st.integers(1, 6)),
            "channel_multipliers": draw(st.lists(st.integers(1, 4), min_size=len(rates), max_size=len(rates))),
            "downsample_rates": rates,
            "blocks_per_stage": draw(st.integers(0, 2)),
            "block_kernel_size": draw(st.integers(1, 8)),
            "latent_dim": tts["latent_size"],
            "n_fft": n_fft,
            "hop_length": hop_length,
            "num_quantizers": tts["num_quantizers"],
            "codebook_size": tts["codebook_size"],
        },
    }


def lengths() -> st.SearchStrategy[int]:
    """Samples: one, around the edges of the frontend, one frame, two frames, some frames."""
    return st.one_of(
        st.sampled_from([1, 160, 200, 201, 1119, 1120, 1279, 1280, 2400, 2560]), st.integers(1, 10 * FRAME)
    )


def cuts(length: int) -> st.SearchStrategy[list[int]]:
    """Places to cut at: anywhere, several at one place, and at or beside the samples that complete a frame."""
    edges = [place for frame in range(length // FRAME + 1) for place in (FRAME * frame + 199, FRAME * frame + 200)]
    anywhere = st.integers(0, length)
    near = st.sampled_from([edge for edge in [*edges, 1, 201, length - 1] if 0 <= edge <= length] or [0])
    return st.lists(st.one_of(anywhere, near), max_size=12).map(sorted)


def signals(length: int) -> st.SearchStrategy[Float32]:
    """Speech-like signals of that length."""
    return st.integers(0, 3).map(lambda seed: speech(length / 16000, seed=seed)[:length])
