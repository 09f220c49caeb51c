"""The character-aware subword encoder: masks, flags, ids without characters, padding, soft-capped attention."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tests.models import normal, randomised, weights_of, with_weights
from voicechat_mlx.config import CharacterEncoderConfig
from voicechat_mlx.talker.char_encoder import CharAttention, CharAwareSubwordEncoder

WIDTH = 8
CHARACTERS = [[0, 1, 2], [3], [4, 4], [], [5, 6, 7, 1, 0]]
"""What text ids 0 … 4 are spelt with; id 3 has no characters."""
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def config(**changes: float) -> CharacterEncoderConfig:
    sizes: dict[str, float] = {
        "hidden_size": WIDTH,
        "intermediate_size": 10,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "query_pre_attn_scalar": 5,
        "char_vocab_size": 9,
    }
    return CharacterEncoderConfig(**{**sizes, **changes})


def make() -> CharAwareSubwordEncoder:
    encoder = randomised(CharAwareSubwordEncoder(config()))
    tables = {
        "subword_flag_emb.is_continuation": mx.array([0, 1, 1, 0, 1, 0]),
        "subword_flag_emb.pad_tensor": mx.array(5),
        "bos_eos_emb.special_flags": mx.array([0, 1, 2, 0, 0]),
        "bos_eos_emb.pad_tensor": mx.array(4),
    }
    with_weights(encoder, tables)
    longest = max(map(len, CHARACTERS))
    padded = [[*letters, *[8] * (longest - len(letters))] for letters in CHARACTERS]
    encoder.set_characters(mx.array(padded), mx.array([len(letters) for letters in CHARACTERS]))
    return encoder


def flags(encoder: CharAwareSubwordEncoder, continuation: int, special: int) -> np.ndarray:
    return np.asarray(
        encoder.subword_flag_emb.cont_emb.weight[continuation] + encoder.bos_eos_emb.special_emb.weight[special]
    )


def test_only_masked_positions_are_spelled_and_every_position_has_its_flags() -> None:
    encoder, ids = make(), mx.array([[0, 1, 2, 4]])
    spelled = np.asarray(encoder.spell(ids))
    assert np.abs(spelled).sum(axis=-1).min() > 0
    added = np.array([flags(encoder, c, s) for c, s in [(0, 0), (1, 1), (1, 2), (1, 0)]])
    found = np.asarray(encoder(ids, mx.array([[True, False, True, False]])))[0]
    np.testing.assert_allclose(found, added + spelled[0] * np.array([1, 0, 1, 0])[:, None], **CLOSE)


def test_without_a_mask_every_position_is_spelled() -> None:
    encoder, ids = make(), mx.array([[0, 1, 2, 4]])
    np.testing.assert_array_equal(encoder(ids), encoder(ids, mx.ones((1, 4), dtype=mx.bool_)))


@pytest.mark.parametrize("id", [3, 5, 400, -1])
def test_ids_without_characters_contribute_zero_before_the_flags(id: int) -> None:
    encoder = make()
    assert not np.any(np.asarray(encoder.spell(mx.array([[id, 0]])))[0, 0])


@pytest.mark.parametrize("id", [6, 389, -1])
def test_ids_beyond_the_flag_tables_are_read_as_the_padding_entry(id: int) -> None:
    """Padding is entry 5 of `is_continuation` (0) and entry 4 of `special_flags` (0)."""
    encoder = make()
    np.testing.assert_allclose(encoder(mx.array([[id]]))[0, 0], flags(encoder, 0, 0), **CLOSE)


def test_a_token_sounds_the_same_beside_longer_ones() -> None:
    encoder = make()
    together = encoder.spell(mx.array([[4, 1, 2]]))
    for place, id in enumerate([4, 1, 2]):
        np.testing.assert_allclose(together[0, place], encoder.spell(mx.array([[id]]))[0, 0], **CLOSE)


def test_a_table_of_all_ids_says_what_spelling_them_says() -> None:
    encoder, ids = make(), mx.array([[0, 1, 2, 3, 4]])
    spelled = np.asarray(encoder(ids))
    encoder.tabulate()
    np.testing.assert_allclose(encoder(ids), spelled, **CLOSE)


def test_padding_characters_never_matter() -> None:
    encoder, ids = make(), mx.array([[0, 1, 2, 4]])
    before = np.asarray(encoder.spell(ids))
    encoder.embed_tokens.weight[8] = 1e3
    np.testing.assert_array_equal(encoder.spell(ids), before)


def test_the_mean_is_over_the_characters_of_inputs_scaled_by_the_root_of_the_width() -> None:
    """A single character attends to itself alone, so its value passes straight through."""
    encoder = make()
    x = (encoder.embed_tokens(mx.array([[3]])) * WIDTH**0.5)[None, 0]
    layer = encoder.backbone.encoder.layers[0]
    value = layer.self_attn.v_proj(layer.pre_self_attn_layernorm(x)).reshape(1, 1, 2, 6)
    mixed = layer.self_attn.o_proj(mx.repeat(value, 2, axis=2).reshape(1, 1, 24))
    x = x + layer.post_self_attn_layernorm(mixed)
    x = x + layer.post_feedforward_layernorm(layer.mlp(layer.pre_feedforward_layernorm(x)))
    expected = encoder.proj_embedding(encoder.backbone.encoder.norm(x))
    np.testing.assert_allclose(encoder.spell(mx.array([[1]])), expected, **CLOSE)
    doubled = encoder.backbone.encoder(encoder.embed_tokens(mx.array([[4, 4]])) * WIDTH**0.5, mx.array([[True, True]]))
    np.testing.assert_allclose(encoder.spell(mx.array([[2]]))[0], encoder.proj_embedding(doubled.mean(axis=1)), **CLOSE)


@pytest.mark.parametrize("loudness", [0.1, 30.0])
def test_attention_is_bidirectional_rotates_halves_and_caps_its_scores(loudness: float) -> None:
    attention = randomised(CharAttention(config()))
    x = loudness * normal(1, 5, WIDTH)
    w, rows = weights_of(attention), np.asarray(x[0], np.float64)

    def heads(letter: str, count: int, turn: bool) -> np.ndarray:
        split = (rows @ w[f"{letter}_proj.weight"].T).reshape(5, count, 6).transpose(1, 0, 2)
        if not turn:
            return split
        angles = np.arange(5)[:, None] / 1e4 ** (np.arange(3) / 3)
        low, high = split[..., :3], split[..., 3:]
        cosine, sine = np.cos(angles), np.sin(angles)
        return np.concatenate([low * cosine - high * sine, high * cosine + low * sine], axis=-1)

    q, k, v = heads("q", 4, True), heads("k", 2, True), heads("v", 2, False)
    context = []
    for head in range(4):
        scores = 50 * np.tanh(q[head] @ k[head // 2].T / np.sqrt(5) / 50)
        scores[:, 4] = -np.inf  # the last is padding
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        context.append(weights / weights.sum(axis=-1, keepdims=True) @ v[head // 2])
    expected = np.concatenate(context, axis=1) @ w["o_proj.weight"].T
    is_character = mx.array([[True, True, True, True, False]])
    np.testing.assert_allclose(attention(x, is_character)[0], expected, rtol=1e-3, atol=1e-4 * loudness)
    if loudness > 1:
        uncapped = np.abs(np.concatenate([q[h] @ k[h // 2].T for h in range(4)]) / np.sqrt(5)).max()
        assert uncapped > 100  # so the cap was at work
