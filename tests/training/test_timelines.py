from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reference.training import content
from reference.training.data import Clip
from reference.training.model_files import read_tokenizer
from reference.training.scoring import called, score, spoken
from reference.training.timelines import Planner, Row, random_row
from reference.training.vocabularies import BOS, CALL_END, CALL_START, EOS, PAD, RESPONSE_END

QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."
STARTS = (0, 2000, 11000, 14000, 23000, 26000)
"""22.05 kHz samples at which the words of the answer start."""


@pytest.fixture
def planner(vocabulary_folder: Path) -> Planner:
    user = [
        Clip(text=QUESTION, kind="question", voice="v", split="train", length=20000, starts=(0, 1, 2, 3, 4, 5)),
        Clip(text="What time is it?", kind="question", voice="v", split="train", length=14000, starts=(0, 1, 2, 3)),
        Clip(text="", kind="noise", voice="noise", split="train", length=9000),
    ]
    texts = {ANSWER: STARTS, "It is two o'clock.": (0, 4000, 6000, 12000)}
    aria = [
        Clip(text=text, kind="answer", voice="aria", split="train", length=36000, starts=starts)
        for text, starts in texts.items()
    ]
    return Planner(user, aria, read_tokenizer(vocabulary_folder), "train")


def positions(channel: np.ndarray) -> dict[int, int]:
    return {int(frame): int(channel[frame]) for frame in np.flatnonzero(channel != PAD)}


def test_an_answer_begins_four_frames_after_the_question_and_ends_after_its_sound(planner: Planner) -> None:
    row = planner.row(80)
    planner.ask(row, 0, 1000, ANSWER)
    said = positions(row.text)
    begin = 17 + 4  # the question ends at sample 21000, in frame 16, which ends at 17 · 1280 = 21760
    assert said[begin] == BOS and min(said) == begin
    sound = 21  # 36000 / 1764 = 20.4 frames
    assert said[begin + 3 + sound] == EOS and max(said) == begin + 3 + sound


def test_every_word_is_written_where_it_is_heard_one_token_a_frame(planner: Planner) -> None:
    row = planner.row(80)
    planner.ask(row, 0, 1000, ANSWER)
    ids = [index for frame, index in sorted(positions(row.text).items()) if index not in (BOS, EOS)]
    assert planner.tokenizer.decode(ids) == ANSWER
    words = ["The", " capital", " of", " France", " is", " Paris."]
    frames = sorted(frame for frame, index in positions(row.text).items() if index not in (BOS, EOS))
    place = 0
    for word, start in zip(words, STARTS, strict=True):
        assert frames[place] - 21 >= 1 + start // 1764
        if word in ("The", " capital", " of"):  # nothing crowds these
            assert frames[place] - 21 == 1 + start // 1764
        place += len(planner.tokenizer.encode(word, add_special_tokens=False).ids)


def test_the_prompt_moves_everything_and_stays_silent(planner: Planner) -> None:
    plain, prompted = planner.row(90), planner.row(90, "Be concise.")
    for row in (plain, prompted):
        planner.ask(row, 0, 1000, ANSWER)
    length = len(prompted.prompt)
    assert prompted.prompt[0] == BOS and prompted.prompt[-1] == EOS
    assert set(prompted.text[:length]) == {PAD}
    assert np.array_equal(prompted.text[length:], plain.text[: 90 - length])


def test_an_interruption_ends_the_answer_within_half_a_second(planner: Planner) -> None:
    row = planner.row(80)
    planner.ask(row, 0, 1000, ANSWER)
    start = 30 * 1280 + 500
    planner.interrupt(row, start)
    assert max(positions(row.text)) == 34 and row.text[34] == EOS
    assert (34 + 1) * 1280 - start <= 0.5 * 16000
    assert row.turns[0].interrupted and row.turns[0].end == 34


def test_a_tool_is_called_between_its_markers_and_answered_after_the_response(planner: Planner) -> None:
    question = planner.tool_questions[0]
    response, answers = question.outcomes[1]
    row = planner.row(120)
    planner.ask_tool(row, 1, 0, question.call, (response, answers["full"]), wait=5)
    function, said = positions(row.function), positions(row.text)
    begin = 11 + 4
    assert function[begin] == CALL_START
    end = next(frame for frame, index in function.items() if index == CALL_END)
    assert planner.tokenizer.decode(list(row.function[begin + 1 : end])) == question.call
    forced = np.flatnonzero(row.forced)
    assert forced[0] == end + 6 and row.function[forced[-1]] == RESPONSE_END
    assert planner.tokenizer.decode(list(row.function[forced[:-1]])) == response
    assert said[int(forced[-1]) + 2] == BOS and min(said) == forced[-1] + 2


def test_labels_score_full_marks_and_silence_scores_none(planner: Planner) -> None:
    random = np.random.default_rng(0)
    rows = [random_row(planner_of_one_answer(planner), 200, random) for _ in range(60)]
    figures = score(rows, *labels(rows), planner.tokenizer)
    shares = {name: value for name, value in figures.items() if not name.endswith("cases")}
    assert set(shares.values()) == {100.0}
    assert {"answers exact", "stopped when interrupted", "silent on noise", "later answers exact"} <= set(shares)
    quiet = np.full((60, 200), PAD, np.int64)
    nothing = score(rows, quiet, quiet, planner.tokenizer)
    assert nothing["answers exact"] == nothing["stopped when interrupted"] == 0
    assert nothing["silent on noise"] == 100


def planner_of_one_answer(planner: Planner) -> Planner:
    """The same answer in every form: the fixture has no sounds for others."""
    planner.tool_questions = []
    planner.questions = [content.Question(text=QUESTION, topic="", answers=dict.fromkeys(content.FORMS, ANSWER))]
    return planner


def labels(rows: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    return np.stack([row.text for row in rows]).astype(np.int64), np.stack([row.function for row in rows]).astype(
        np.int64
    )


def test_what_is_said_and_called_is_read_off_the_timeline(planner: Planner) -> None:
    encode = planner.tokenizer.encode
    ids = [PAD, BOS, *encode("It is two", add_special_tokens=False).ids, EOS, PAD, BOS, 40]
    said = spoken(np.array(ids), planner.tokenizer)
    assert [one.text for one in said] == ["It is two", planner.tokenizer.decode([40])]
    assert said[0].begin == 1 and said[0].end == len(ids) - 4 and said[1].end is None
    call = [PAD, CALL_START, *encode("[1]", add_special_tokens=False).ids, PAD, CALL_END]
    assert called(np.array(call), planner.tokenizer) == ["[1]"]
