"""The talker's transformer: which layers see what, rotation by hand, and streams over full windows."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tests.models import normal, randomised, weights_of
from voicechat_mlx.config import CharacterEncoderConfig, TtsConfig
from voicechat_mlx.nn.cache import KVCache
from voicechat_mlx.talker.backbone import TalkerAttention, TalkerBackbone

WIDTH = 8
CLOSE = {"rtol": 1e-4, "atol": 5e-5}
"""float32 in another order through a few blocks."""


def config(layers: int = 1, window: int = 3, every: int = 6, **changes: float) -> TtsConfig:
    sizes: dict[str, float] = {"num_attention_heads": 4, "num_key_value_heads": 4, "query_pre_attn_scalar": 5}
    return TtsConfig(
        hidden_size=WIDTH,
        intermediate_size=12,
        num_hidden_layers=layers,
        head_dim=6,
        sliding_window=window,
        sliding_window_pattern=every,
        character_encoder=CharacterEncoderConfig(hidden_size=WIDTH),
        **{**sizes, **changes},
    )


def influenced(backbone: TalkerBackbone, frames: int, place: int) -> list[int]:
    """The output frames that change when input frame `place` does."""
    x = normal(1, frames, WIDTH)
    moved = mx.array(np.asarray(x))
    moved[0, place] += 1.0
    changed = np.asarray(backbone(moved)) != np.asarray(backbone(x))
    return np.flatnonzero(changed.any(axis=(0, 2))).tolist()


def test_a_sliding_window_includes_the_frame_itself() -> None:
    assert influenced(randomised(TalkerBackbone(config(window=3))), 9, 2) == [2, 3, 4]
    assert influenced(randomised(TalkerBackbone(config(window=1))), 9, 2) == [2]


def test_windows_of_stacked_layers_add_up() -> None:
    """Two layers reach 2 · (3 - 1) frames back."""
    assert influenced(randomised(TalkerBackbone(config(layers=2, window=3))), 9, 1) == [1, 2, 3, 4, 5]


def test_every_sixth_layer_is_global() -> None:
    windows = [cache.window for cache in TalkerBackbone(config(layers=13)).make_cache(2, mx.float32).layers]
    assert windows == [3, 3, 3, 3, 3, None, 3, 3, 3, 3, 3, None, 3]
    assert influenced(randomised(TalkerBackbone(config(every=1))), 9, 0) == list(range(9))


@pytest.mark.parametrize("is_global", [True, False])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_attention_norms_then_rotates_halves_and_scales_by_the_query_scalar(is_global: bool, key_heads: int) -> None:
    settings = config(window=4, num_key_value_heads=key_heads)
    attention, x = randomised(TalkerAttention(settings, is_global=is_global)), normal(1, 7, WIDTH)
    w, rows = weights_of(attention), np.asarray(x[0], np.float64)
    base = 1e6 if is_global else 1e4

    def heads(letter: str, count: int) -> np.ndarray:
        return (rows @ w[f"{letter}_proj.weight"].T).reshape(7, count, 6).transpose(1, 0, 2)

    def rotated(letter: str, count: int) -> np.ndarray:
        part = heads(letter, count)
        part = part / np.sqrt((part**2).mean(axis=-1, keepdims=True) + 1e-6) * (w[f"{letter}_norm.weight"] + 1)
        angles = np.arange(7)[:, None] / base ** (np.arange(3) / 3)
        low, high = part[..., :3], part[..., 3:]
        cosine, sine = np.cos(angles), np.sin(angles)
        return np.concatenate([low * cosine - high * sine, high * cosine + low * sine], axis=-1)

    q, k, v = rotated("q", 4), rotated("k", key_heads), heads("v", key_heads)
    i, j = np.arange(7)[:, None], np.arange(7)[None]
    visible = (j <= i) & (is_global | (j > i - 4))
    context = []
    for head in range(4):
        shared = head // (4 // key_heads)
        scores = np.where(visible, q[head] @ k[shared].T * 5**-0.5, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        context.append(weights / weights.sum(axis=-1, keepdims=True) @ v[shared])
    expected = np.concatenate(context, axis=1) @ w["o_proj.weight"].T
    cache = KVCache(1, key_heads, 6, None if is_global else 4, mx.float32)
    cache.reserve(7)
    np.testing.assert_allclose(attention(x, cache, cache.mask(7))[0], expected, **CLOSE)


def test_a_block_has_norms_before_and_after_each_half_and_inputs_are_not_scaled() -> None:
    backbone, x = randomised(TalkerBackbone(config(window=9))), normal(1, 5, WIDTH)
    block = backbone.layers[0]
    cache = KVCache(1, 4, 6, 9, mx.float32)
    cache.reserve(5)
    mixed = block.self_attn(block.input_layernorm(x), cache, cache.mask(5))
    y = x + block.post_attention_layernorm(mixed)
    y = y + block.post_feedforward_layernorm(block.mlp(block.pre_feedforward_layernorm(y)))
    np.testing.assert_allclose(backbone(x), backbone.norm(y), **CLOSE)


@pytest.mark.parametrize("window", [1, 4, 50])
@pytest.mark.parametrize(
    "cuts", [[37], [1, 2, 3], [10, 30, 31], list(range(1, 45))], ids=["prompt", "3", "odd", "single"]
)
def test_frames_in_pieces_equal_all_at_once(window: int, cuts: list[int]) -> None:
    """Also a voice prompt of 37 frames through a window that is shorter."""
    backbone, x = randomised(TalkerBackbone(config(layers=3, window=window, every=3))), normal(2, 45, WIDTH)
    cache = backbone.make_cache(2, mx.float32)
    parts = [backbone(part, cache) for part in mx.split(x, cuts, axis=1)]
    np.testing.assert_allclose(mx.concatenate(parts, axis=1), backbone(x), **CLOSE)
