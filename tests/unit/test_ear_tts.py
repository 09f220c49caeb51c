"""The talker's rounds: mask schedule, sums of codes, and code generation against the loop of the specification."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tests.models import normal, shallow, tiny
from voicechat_mlx.talker.ear_tts import Draws, EarTts, mask_schedule

MASKED = [31, 31, 31, 31, 30, 29, 26, 22]


def talker() -> EarTts:
    return shallow().talker


def test_the_mask_schedule_of_31_levels_in_8_rounds_with_exponent_3() -> None:
    counts = mask_schedule(31, 8, 3.0)
    assert counts == [0, 0, 0, 1, 1, 3, 4, 22]
    assert counts == [high - low for high, low in zip(MASKED, [*MASKED[1:], 0], strict=True)]
    assert sum(counts) == 31


def test_the_published_schedule_needs_the_head_five_times() -> None:
    assert tiny().talker.rounds == 5


@pytest.mark.parametrize("levels", [1, 2, 5, 31, 64])
@pytest.mark.parametrize("iterations", [1, 2, 8, 20])
@pytest.mark.parametrize("exponent", [0.5, 1.0, 3.0])
def test_every_schedule_fixes_each_level_once(levels: int, iterations: int, exponent: float) -> None:
    counts = mask_schedule(levels, iterations, exponent)
    assert len(counts) == iterations
    assert min(counts) >= 0
    assert sum(counts) == levels


def test_depthsum_ignores_the_mask_code() -> None:
    model = talker()
    books, masked = np.asarray(model.rvq_embs), model.mask_code
    assert masked == books.shape[1]
    codes = np.full((1, 2, 31), masked)
    assert not np.any(np.asarray(model.depthsum(mx.array(codes))))
    codes[0, 1, [0, 7, 30]] = [4, 0, masked - 1]
    expected = books[0, 4] + books[7, 0] + books[30, -1]
    found = np.asarray(model.depthsum(mx.array(codes)))
    np.testing.assert_allclose(found[0, 1], expected, rtol=1e-5, atol=1e-6)
    assert not found[0, 0].any()


@pytest.mark.parametrize("outside", [-1, 5000])
def test_codes_outside_the_codebook_add_nothing(outside: int) -> None:
    """The published control codes lie outside; feeding them back must not read a neighbour's row."""
    assert not np.any(np.asarray(talker().depthsum(mx.full((1, 1, 31), outside))))


def test_depthsum_of_ordinary_codes_adds_one_row_of_each_book() -> None:
    model = talker()
    codes = np.random.default_rng(0).integers(0, model.mask_code, (2, 3, 31))
    books = np.asarray(model.rvq_embs, np.float64)
    expected = books[np.arange(31), codes].sum(axis=-2)
    np.testing.assert_allclose(model.depthsum(mx.array(codes)), expected, rtol=1e-5, atol=1e-5)


def codes_by_hand(model: EarTts, hidden: mx.array, draws: Draws, noise_scale: float) -> list[int]:
    """All levels masked; a round embeds the codes so far, asks the head, and quantises what its mean leaves over."""
    books = np.asarray(model.rvq_embs, np.float64)
    code, done, turn = [model.mask_code] * len(books), 0, 0
    for count in [high - low for high, low in zip(MASKED, [*MASKED[1:], 0], strict=True)]:
        if count == 0:
            continue
        embedded = model.embed_code(model.depthsum(mx.array(code)))
        mean, log_std = model.mog_head(hidden + embedded, draws.gumbel[turn])
        noise = np.asarray(draws.normal[turn], np.float64) * noise_scale
        residual = np.asarray(mean, np.float64) + np.exp(log_std.item()) * noise
        for level in range(done, done + count):
            code[level] = int(((residual - books[level]) ** 2).sum(axis=-1).argmin())
            residual = residual - books[level][code[level]]
        done, turn = done + count, turn + 1
    return code


@pytest.mark.parametrize("seed", range(4))
def test_codes_equal_the_loop_of_the_specification(seed: int) -> None:
    model = talker()
    hidden = normal(2, model.null_emb.size, seed=seed)
    draws = model.draws(mx.random.key(seed))
    found = model.generate_codes(hidden, draws)
    assert found.dtype == mx.int32
    assert found.tolist() == codes_by_hand(model, hidden, draws, noise_scale=0.001)


def test_draws_depend_on_the_key_alone_and_fill_every_round() -> None:
    model = talker()
    first, again, other = (model.draws(mx.random.key(seed)) for seed in (5, 5, 6))
    assert first.gumbel.shape == (5, 19)
    assert first.normal.shape == (5, 24)
    for one, two, three in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(one, two)
        assert not np.any(np.asarray(one) == np.asarray(three))


def test_fusing_puts_the_conditioned_row_first_and_null_in_every_place_of_the_second() -> None:
    model, width = talker(), talker().null_emb.size
    audio, text = normal(1, 3, width), normal(1, 3, width, seed=1)
    fused = model.fuse(audio, text)
    fusion = model.gated_fusion_audio_text
    null = mx.broadcast_to(model.null_emb, (1, 3, width))
    np.testing.assert_allclose(fused[:1], fusion(audio, text), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(fused[1:], fusion(audio, null), rtol=1e-5, atol=1e-5)


def test_fusion_equals_its_equation() -> None:
    """norm(σ(r) · (σ(g) · A(a / 31) + (1 - σ(g)) · T(t)))."""
    model, width = talker(), talker().null_emb.size
    audio, text = normal(1, 2, width), normal(1, 2, width, seed=1)
    fusion = model.gated_fusion_audio_text
    w = {name: np.asarray(array, np.float64) for name, array in fusion.audio_proj.parameters().items()}
    t = {name: np.asarray(array, np.float64) for name, array in fusion.text_proj.parameters().items()}
    gate = 1 / (1 + np.exp(-np.asarray(fusion.gate, np.float64)))
    mixed = gate * (np.asarray(audio, np.float64) / 31 @ w["weight"].T + w["bias"])
    mixed = mixed + (1 - gate) * (np.asarray(text, np.float64) @ t["weight"].T + t["bias"])
    mixed = mixed / (1 + np.exp(-fusion.residual_scale.item()))
    normed = mixed / np.sqrt((mixed**2).mean(axis=-1, keepdims=True) + 1e-6)
    expected = normed * (np.asarray(fusion.final_norm.weight, np.float64) + 1)
    np.testing.assert_allclose(fusion(audio, text), expected, rtol=1e-4, atol=1e-5)


def test_warm_up_feeds_latents_until_the_last_frame_where_audio_begins() -> None:
    """Frame P - 1 gets the embedding of the codes before it plus `bos_emb`; only the last two subwords are spelled."""
    model, width, frames = talker(), talker().null_emb.size, 6
    codes = np.random.default_rng(0).integers(0, model.mask_code, (1, frames, 31))
    latent, subwords = normal(1, frames, width), mx.array([[30, 40, 50, 60, 70, 80]])
    before = mx.array(codes[:, frames - 2 : frames - 1])
    embedding = mx.concatenate([latent[:, : frames - 1], model.embed_codes(before) + model.bos_emb], axis=1)
    spelled = mx.array([[False, False, False, False, True, True]])
    expected = model.backbone(model.fuse(embedding, model.embed_subword(subwords, spelled)))
    found = model.warm_up(mx.array(codes), latent, subwords, model.make_cache())
    assert found.shape == (2, frames, width)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
