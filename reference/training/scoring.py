"""What the model said on its timelines against what it should have said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from reference.training.timelines import ANSWER_DELAY, Row, Turn
from reference.training.vocabularies import BOS, CALL_END, CALL_START, EOS, PAD

LONGEST_CALL = 30
"""Frames that every call fits into."""
QUICK = 6
"""Frames (0.48 s) from the end of a question within which its answer should begin."""


@dataclass(frozen=True)
class Said:
    """One stretch from BOS to EOS, frames counted from the first audio frame."""

    text: str
    begin: int
    end: int | None


def spoken(ids: NDArray[np.int64], tokenizer: Tokenizer) -> list[Said]:
    """Text ids of the audio frames → what was said."""
    found: list[Said] = []
    begin: int | None = None
    kept: list[int] = []
    for frame, index in enumerate([*ids.tolist(), None]):
        if begin is not None and index in (EOS, BOS, None):
            found.append(Said(_decode(tokenizer, kept), begin, frame if index == EOS else None))
            begin = None
        if index == BOS:
            begin, kept = frame, []
        elif begin is not None and index not in (PAD, None):
            kept.append(index)
    return found


def called(ids: NDArray[np.int64], tokenizer: Tokenizer) -> list[str]:
    """Function ids → the calls, each between its markers."""
    calls: list[str] = []
    kept: list[int] | None = None
    for index in ids.tolist():
        if index == CALL_START:
            kept = []
        elif index == CALL_END and kept is not None:
            calls.append(_decode(tokenizer, kept))
            kept = None
        elif kept is not None and index != PAD:
            kept.append(index)
    return calls


def _decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=False)
    return text


def score(
    rows: Sequence[Row], text: NDArray[np.int64], function: NDArray[np.int64], tokenizer: Tokenizer
) -> dict[str, float]:
    """Rows and the ids of all their positions → shares in percent, each over the turns it is about, and their numbers.

    Only turns that end inside their row count.
    """
    marks: dict[str, list[bool]] = {}

    def mark(name: str, value: bool) -> None:
        marks.setdefault(name, []).append(value)

    for row, ids, calls in zip(rows, text, function, strict=True):
        first = len(row.prompt)
        said, made = spoken(ids[first:], tokenizer), called(calls[first:], tokenizer)
        frames = len(ids) - first
        if not row.turns:
            mark("silent on noise", not said and not made)
        whole = [turn for turn in row.turns if turn.end < frames]
        wanted_calls = [turn.call for turn in row.turns if turn.call and turn.begin + LONGEST_CALL < frames]
        if wanted_calls:
            mark("calls exact", made[: len(wanted_calls)] == wanted_calls)
        elif not any(turn.call for turn in row.turns):
            mark("no call without need", not made)
        for number, turn in enumerate(whole):
            _mark_turn(mark, number, turn, said)
        if whole and not any(turn.call for turn in row.turns):
            mark("nothing else is said", len(said) <= len([turn for turn in row.turns if turn.begin < frames]))
    figures = {name: round(100 * sum(values) / len(values), 2) for name, values in sorted(marks.items())}
    return figures | {f"{name}, cases": len(values) for name, values in sorted(marks.items())}


def _mark_turn(mark, number: int, turn: Turn, said: list[Said]) -> None:  # type: ignore[no-untyped-def]  # a local closure
    if turn.interrupted:
        reply = next((one for one in said if abs(one.begin - turn.begin) <= 2), None)
        mark("stopped when interrupted", reply is not None and reply.end is not None and reply.end <= turn.end + 2)
        return
    near = [one for one in said if turn.begin - ANSWER_DELAY <= one.begin <= turn.end]
    exact = any(one.text == turn.answer for one in near)
    mark("answers exact", exact)
    mark("first answers exact" if number == 0 else "later answers exact", exact)
    if turn.call:
        mark("answers from results exact", exact)
    else:
        mark("ends", any(one.end is not None for one in near))
        delay = min((one.begin - turn.begin + ANSWER_DELAY for one in near), default=99)
        mark("begins in time", 0 < delay <= QUICK)
