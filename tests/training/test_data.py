from __future__ import annotations

import numpy as np
import pytest
import torch

from reference.audio.mel import log_mel
from reference.codec.prvq import Prvq
from reference.training import content
from reference.training.features import LogMel, SoundBank
from reference.training.quantiser import BookLearner
from reference.training.spectral import snr_db, tone_distance
from reference.training.speech import word_starts
from reference.training.vocabularies import Pieces, longest_pieces, text_tokenizer, word_tokens
from voicechat_mlx.config import PreprocessorConfig
from voicechat_mlx.conventions import MLX


def test_there_are_enough_questions_and_paris_is_among_the_answers() -> None:
    questions = content.questions()
    assert len(questions) >= 400
    france = next(question for question in questions if question.text == "What is the capital of France?")
    assert france.answers["full"] == "The capital of France is Paris."
    assert france.answers["concise"] == "It is Paris." and france.answers["word"] == "Paris."
    topics = {question.topic for question in questions}
    assert {"capitals", "plus", "colours", "opposites", "days", "months", "sounds", "talk"} <= topics
    said = {question.text for question in questions}
    assert {"Hello.", "Who are you?", "Stop."} <= said


def test_sums_are_right() -> None:
    for question in content.questions():
        if question.topic in ("plus", "minus", "times"):
            left, operation, right = (
                question.text.removeprefix("What is ").removesuffix("?").split(f" {question.topic} ")[0],
                question.topic,
                question.text.removesuffix("?").split(f" {question.topic} ")[1],
            )
            numbers = {content.number(n): n for n in range(101)}
            value = {"plus": int.__add__, "minus": int.__sub__, "times": int.__mul__}[operation](
                numbers[left], numbers[right]
            )
            assert question.answers["concise"] == f"It is {content.number(value)}."


def test_text_ids_are_special_then_single_characters_then_merges() -> None:
    vocabulary = text_tokenizer(512).get_vocab(with_added_tokens=True)
    assert sorted(vocabulary.values()) == list(range(512))
    single = sorted(index for token, index in vocabulary.items() if len(token) == 1)
    assert single == list(range(24, 280))
    assert vocabulary["<s>"] == 1 and vocabulary["</s>"] == 2 and vocabulary["<SPECIAL_12>"] == 12
    assert {vocabulary[f"<SPECIAL_{index}>"] for index in (20, 21, 22)} == {20, 21, 22}


def test_every_answer_comes_back_from_its_tokens_word_by_word() -> None:
    tokenizer = text_tokenizer(512)
    for text in content.answer_texts():
        words = word_tokens(tokenizer, text)
        assert len(words) == len(text.split())
        assert tokenizer.decode([index for word in words for index in word]) == text


def test_every_transcript_comes_back_from_its_pieces() -> None:
    pieces = Pieces(192)
    assert len(pieces.vocabulary) == len(set(pieces.vocabulary)) == 192
    for question in content.questions():
        text = content.transcript(question.text)
        assert pieces.decode([index for word in pieces.encode_words(text) for index in word]) == text
        assert "".join(longest_pieces(text, pieces.vocabulary)).replace("▁", " ").strip() == text


def test_words_without_an_event_lie_between_their_neighbours() -> None:
    assert word_starts("in the sea", [(0, 100), (7, 800)]) == [100, 400, 800]


def test_batched_mel_is_the_twins() -> None:
    config, waves = PreprocessorConfig(), torch.randn(2, 4000) * 0.1
    batched = LogMel(config)(waves)
    for wave, rows in zip(waves, batched, strict=True):
        torch.testing.assert_close(rows, log_mel(wave, config, MLX)[0][0])


def test_clips_are_mixed_where_they_start() -> None:
    bank = SoundBank(np.arange(1, 7, dtype=np.int16) * 1000, [0, 2], [2, 4])
    wave = bank.mix(torch.tensor([[0, 1], [1, -1]]), torch.tensor([[3, 1], [4, 0]]), torch.tensor([[1.0, 2.0]] * 2), 6)
    expected = torch.tensor([[0.0, 6, 8, 11, 14, 0], [0, 0, 0, 0, 3, 4]]) * 1000 / 32768
    torch.testing.assert_close(wave, expected)


def test_books_learn_to_code_what_they_are_given() -> None:
    torch.manual_seed(0)
    prvq = Prvq(4, 16, 8)
    latents = torch.randn(512, 8) * torch.linspace(2, 0.2, 8)
    learner = BookLearner(prvq, 512)
    learner.start(latents, rounds=1)

    def error() -> float:
        return float((prvq.decode(prvq.encode(latents[None])) - latents).detach().square().mean())

    first = error()
    for _ in range(100):
        learner.quantise(latents, torch.full((512,), 4))
    assert error() < first < float(latents.square().mean()) / 4
    learner.counts[2, 5] = 0
    learner.replace_unused()
    assert bool((learner.residuals[2] == prvq.mus_list[2][5].detach()).all(1).any())


def test_the_first_books_alone_give_a_coarser_sum() -> None:
    torch.manual_seed(0)
    prvq, latents = Prvq(3, 8, 4), torch.randn(64, 4)
    learner = BookLearner(prvq, 64)
    learner.start(latents, rounds=3)
    codes = prvq.encode(latents[None])[0]
    expected = prvq.mus_list[0][codes[:, 0]] + prvq.mus_list[1][codes[:, 1]]
    torch.testing.assert_close(learner.quantise(latents, torch.full((64,), 2)), expected.detach())


@pytest.mark.parametrize("ratio, decibels", [(0.1, 20.0), (0.01, 40.0)])
def test_tone_losses_count_decibels(ratio: float, decibels: float) -> None:
    true = torch.sin(torch.arange(2000) * 0.3).unsqueeze(0)
    made = true * (1 + ratio)
    assert float(snr_db(true, made)) == pytest.approx(decibels, abs=0.01)
    assert float(tone_distance(true, made)) == pytest.approx(-decibels / 10, abs=0.08)
