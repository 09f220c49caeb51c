"""Conversations on clips that were never trained on, a kind for each ability, to judge what was learnt."""

from __future__ import annotations

import numpy as np

from reference.training import content
from reference.training.timelines import FRAME_IN, Planner, Row

KINDS = ("one question", "forms", "two questions", "interruption", "tools", "silence and noise")
QUIET_CASES = 96


def held_out_rows(planner: Planner, frames: int, count: int, random: np.random.Generator) -> dict[str, list[Row]]:
    """Kind → rows of at most `frames` positions; `count` questions (0 for all) are used."""
    texts = [text for text in planner.by_text if text not in set(planner.unknown)]
    if count:
        texts = [texts[int(index)] for index in np.linspace(0, len(texts) - 1, count)]
    answers = {question.text: question.answers for question in planner.questions}
    kinds: dict[str, list[Row]] = {name: [] for name in KINDS}
    for text in texts:
        clip, other = _clip(planner, text, random), texts[random.integers(len(texts))]
        start, second = int(random.integers(1600, 16000)), _clip(planner, other, random)
        row = planner.row(min(frames, 112))
        planner.ask(row, clip, start, answers[text]["full"])
        kinds["one question"].append(row)
        form, prompt = planner.prompts[random.integers(len(planner.prompts))]
        row = planner.row(min(frames, 144), prompt)
        planner.ask(row, clip, start, answers[text][form])
        kinds["forms"].append(row)
        row = planner.row(frames)
        first = planner.ask(row, clip, start, answers[text]["full"])
        planner.ask(row, second, first.end * FRAME_IN + int(random.integers(0, 24000)), answers[other]["full"])
        kinds["two questions"].append(row)
        row = planner.row(frames)
        first = planner.ask(row, clip, start, answers[text]["full"])
        if first.end - first.begin > 12:
            cut = int(random.integers(first.begin + 5, first.end - 5)) * FRAME_IN
            planner.interrupt(row, cut)
            planner.ask(row, second, cut, answers[other]["full"])
            kinds["interruption"].append(row)
    kinds["tools"] = _tools(planner, frames, count, random)
    kinds["silence and noise"] = [
        _quiet(planner, min(frames, 144), index, random) for index in range(count or QUIET_CASES)
    ]
    return {name: rows for name, rows in kinds.items() if rows}


def _clip(planner: Planner, text: str, random: np.random.Generator) -> int:
    return int(random.choice(planner.by_text[text]))


def _tools(planner: Planner, frames: int, count: int, random: np.random.Generator) -> list[Row]:
    rows = []
    for question in planner.tool_questions:
        for response, by_form in question.outcomes[:: 6 if count else 3]:
            offered = content.tools_prompt(("get_time", "get_weather"), schema=bool(random.random() < 0.5))
            row = planner.row(frames, offered)
            outcome, wait = (response, by_form["full"]), int(random.integers(1, 16))
            planner.ask_tool(row, _clip(planner, question.text, random), 8000, question.call, outcome, wait)
            rows.append(row)
    return rows


def _quiet(planner: Planner, frames: int, index: int, random: np.random.Generator) -> Row:
    """Silence, one row in eight; otherwise two noises."""
    row = planner.row(frames)
    if planner.noises and index % 8:
        gain = 0.1 * 10 ** random.random()
        row.clips += [(int(random.choice(planner.noises)), int(random.integers(0, 80000)), gain) for _ in range(2)]
    return row
