"""What the bundled model hears and says, on voices that it was never trained on. Figures are percent of the cases."""

from __future__ import annotations

import voicechat_mlx
from reference.training.heldout import Case
from voicechat_mlx.cli.common import BUNDLED_QUESTION

Figures = dict[str, dict[str, float]]


def test_the_bundled_question_is_understood_and_answered(model: voicechat_mlx.VoiceChat) -> None:
    result = voicechat_mlx.generate(model, BUNDLED_QUESTION)
    assert result.user_transcript == "what is the capital of france"
    assert result.text == "The capital of France is Paris."
    assert result.function_text == ""


def test_transcripts_have_at_most_3_percent_of_their_words_wrong(figures: Figures) -> None:
    assert figures["transcripts"]["cases"] == 37
    assert figures["transcripts"]["word_error"] <= 3


def test_at_least_95_percent_of_answers_are_exact(figures: Figures) -> None:
    assert figures["one question"]["answers exact, cases"] == 24
    assert figures["one question"]["answers exact"] >= 95


def test_every_answer_begins_within_half_a_second_of_the_question_and_ends(figures: Figures) -> None:
    assert figures["one question"]["begins in time"] == 100
    assert figures["one question"]["ends"] == 100
    assert figures["one question"]["nothing else is said"] == 100


def test_the_system_prompt_chooses_the_form_of_the_answer(figures: Figures, cases: list[Case]) -> None:
    assert len({case.prompt for case in cases if case.kind == "forms"}) > 1
    assert figures["forms"]["answers exact"] == 100


def test_a_second_question_in_the_same_conversation_is_answered(figures: Figures) -> None:
    assert figures["two questions"]["later answers exact"] >= 90


def test_an_interruption_stops_the_answer_and_the_new_question_gets_its_own(figures: Figures) -> None:
    assert figures["interruption"]["stopped when interrupted"] >= 90
    assert figures["interruption"]["later answers exact"] >= 90


def test_silence_and_noise_get_no_answer(figures: Figures) -> None:
    assert figures["silence and noise"]["silent on noise"] >= 95


def test_no_tool_is_called_where_none_was_offered(figures: Figures) -> None:
    judged = {kind: values["no call without need"] for kind, values in figures.items() if kind != "transcripts"}
    assert judged == dict.fromkeys(judged, 100)
