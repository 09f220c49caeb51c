"""The voice and the codec of the bundled model: loudness, a pure tone, silence, and whether speech is understood."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from reference.training.answerers import MlxAnswerer, Reply
from reference.training.evaluate import answers_heard, judge_codec, judge_loudness, judge_voice
from reference.training.heldout import Case
from voicechat_mlx.checkpoint import BUNDLED, Checkpoint

AMPLITUDES = (0.1, 0.5, 0.9)
ANSWERS = 12


@pytest.fixture(scope="module")
def codec(answerer: MlxAnswerer) -> dict[str, float]:
    return judge_codec(answerer)


@pytest.mark.parametrize("amplitude", AMPLITUDES)
def test_a_second_of_440_hz_comes_out_of_the_codec_with_more_than_20_db(
    codec: dict[str, float], amplitude: float
) -> None:
    assert codec[f"440 Hz at {amplitude}, dB"] > 20


def test_the_codes_of_silence_decode_to_silence(codec: dict[str, float]) -> None:
    assert codec["silence rms"] < 1e-3


def test_it_is_loud_while_it_speaks_and_silent_otherwise(
    cases: list[Case], replies: list[Reply], tokenizer: Tokenizer
) -> None:
    loudness = judge_loudness(cases, replies, tokenizer)
    assert loudness["quietest answer"] > 0.01
    assert loudness["loudest silence"] < 1e-3


def test_its_speech_is_understood_by_its_own_ears(
    answerer: MlxAnswerer, cases: list[Case], replies: list[Reply], tokenizer: Tokenizer
) -> None:
    """Aims: 80 % of the sentences exact, 10 % of the pieces wrong. Of 128 answers, 87 % were exact and 12 % wrong.

    These twelve are among the harder ones: 67 % and 16 % were measured with seed 0. What is asserted leaves room for
    two sentences more, since another machine's rounding may draw other codes; it does not state the aim.
    """
    heard = answers_heard(cases, replies, tokenizer)[:ANSWERS]
    judged = judge_voice(answerer, heard, list(Checkpoint.open(BUNDLED).rnnt_vocabulary))
    assert judged["answers"] == ANSWERS
    assert judged["sentences exact"] >= 50
    assert judged["piece error"] <= 25
