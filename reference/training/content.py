"""What the small model is taught: questions, the forms of their answers, prompts, tools, unknown sentences.

The tables are in content.toml; here they become sentences. Every question has one answer in each of four forms, and the
system prompt chooses the form.
"""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FORMS = ("full", "concise", "word", "friendly")
FRIENDLY = "Sure!"


@dataclass(frozen=True, kw_only=True)
class Question:
    """Something a user says, and what is answered."""

    text: str
    topic: str
    answers: dict[str, str]
    """Form → answer, whole sentences with punctuation."""


@dataclass(frozen=True, kw_only=True)
class ToolQuestion:
    """A question that needs a tool: the call, and for each possible result the answers by form."""

    text: str
    tool: str
    call: str
    """The text between the function channel's markers."""
    outcomes: tuple[tuple[str, dict[str, str]], ...]
    """(response text, form → answer)."""


@cache
def tables() -> dict[str, Any]:
    """content.toml."""
    return tomllib.loads((Path(__file__).parent / "content.toml").read_text(encoding="utf-8"))


def transcript(text: str) -> str:
    """What the recogniser should write: lower case, letters and apostrophes only."""
    return " ".join(re.findall(r"[a-z']+", text.lower()))


def number(n: int) -> str:
    """0 … 199 in words."""
    words: dict[str, list[str]] = tables()["words"]
    if n < 20:
        return words["ones"][n]
    if n < 100:
        ones = f" {number(n % 10)}" if n % 10 else ""
        return words["tens"][n // 10 - 2] + ones
    return "one hundred" + (f" {number(n - 100)}" if n > 100 else "")


def sentence(text: str) -> str:
    """First letter large."""
    return text[0].upper() + text[1:]


def forms(
    full: str, concise: str | None = None, word: str | None = None, friendly: str | None = None
) -> dict[str, str]:
    """Form → answer; what is left out falls back on the next longer form."""
    concise = concise or full
    return {"full": full, "concise": concise, "word": word or concise, "friendly": friendly or f"{FRIENDLY} {full}"}


def questions() -> list[Question]:
    """Every question that needs no tool, in a fixed order."""
    found = [*_from_tables(), *_arithmetic(), *_order(), *_facts(), *_talk(), *_without_tools()]
    assert len({question.text for question in found}) == len(found), "a question is listed twice"
    return found


def _from_tables() -> Iterator[Question]:
    for topic in ("capitals", "colours", "opposites", "sounds", "legs", "babies"):
        table = tables()[topic]
        for subject, value in _pairs(table):
            full, concise = (table[form].format(subject, value) for form in ("full", "concise"))
            answers = forms(sentence(full), concise, f"{sentence(value)}.")
            for pattern in table["questions"]:
                yield Question(text=pattern.format(subject), topic=topic, answers=answers)


def _pairs(table: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [row.split(":") for row in re.split(r"[|\n]", table["rows"].strip())]
    pairs = [(subject.strip(), value.strip()) for subject, value in rows]
    if table.get("both_ways"):
        pairs = [pair for subject, value in pairs for pair in ((subject, value), (value, subject))]
    return list(dict.fromkeys(pairs))


def _arithmetic() -> Iterator[Question]:
    cases = [("plus", a, b, a + b) for a in range(1, 11) for b in range(1, 11)]
    cases += [("minus", a, b, a - b) for a in range(2, 11) for b in range(1, a)]
    cases += [("times", a, b, a * b) for a in (2, 3, 5, 10) for b in range(1, 11)]
    for operation, a, b, result in cases:
        left, right, value = number(a), number(b), number(result)
        full = f"{sentence(left)} {operation} {right} is {value}."
        answers = forms(full, f"It is {value}.", f"{sentence(value)}.")
        yield Question(text=f"What is {left} {operation} {right}?", topic=operation, answers=answers)


def _order() -> Iterator[Question]:
    words: dict[str, list[str]] = tables()["words"]
    numbers = [number(n) for n in range(22)]
    for topic, kind, names in (
        ("numbers", "", numbers),
        ("days", "day ", words["days"]),
        ("months", "month ", words["months"]),
    ):
        steps = list(itertools.pairwise(names))
        if topic != "numbers":
            steps.append((names[-1], names[0]))
        for before, after in steps:
            for word, asked, value in (("after", before, after), ("before", after, before)):
                full = f"{sentence(value)} comes {word} {asked}."
                answers = forms(full, f"It is {value}.", f"{sentence(value)}.")
                yield Question(text=f"What {kind}comes {word} {asked}?", topic=topic, answers=answers)


def _facts() -> Iterator[Question]:
    for row in tables()["facts"]["rows"].strip().splitlines():
        text, full, concise, word = (part.strip() for part in row.split("|"))
        yield Question(text=text, topic="facts", answers=forms(full, concise, word))


def _talk() -> Iterator[Question]:
    for row in tables()["talk"]["rows"].strip().splitlines():
        text, answer = (part.strip() for part in row.split("|"))
        yield Question(text=text, topic="talk", answers=forms(answer, friendly=answer))


def _without_tools() -> Iterator[Question]:
    """The tool questions, when the prompt offers no tool."""
    table = tables()["tools"]
    for text in table["time_questions"]:
        yield Question(text=text, topic="no tool", answers=forms(table["no_clock"], friendly=table["no_clock"]))
    for text in _weather_texts():
        yield Question(text=text, topic="no tool", answers=forms(table["no_weather"], friendly=table["no_weather"]))


def _weather_texts() -> list[str]:
    table = tables()["tools"]
    return [pattern.format(city) for city in table["cities"] for pattern in table["weather_questions"]]


def tool_questions() -> list[ToolQuestion]:
    """Every question that calls a tool when the prompt offers it."""
    table = tables()["tools"]
    failed = (tool_response({"error": "failed"}), forms(table["failed"], friendly=table["failed"]))
    hours = []
    for hour in range(1, 13):
        name = number(hour)
        answers = forms(f"It is {name} o'clock.", word=f"{sentence(name)}.")
        hours.append((tool_response({"hour": hour}), answers))
    found = [
        ToolQuestion(text=text, tool="get_time", call=tool_call("get_time", {}), outcomes=(*hours, failed))
        for text in table["time_questions"]
    ]
    for city in table["cities"]:
        skies = [
            (tool_response({"weather": sky}), forms(f"It is {sky} in {city}.", word=f"{sentence(sky)}."))
            for sky in table["skies"]
        ]
        call = tool_call("get_weather", {"city": city})
        for pattern in table["weather_questions"]:
            text = pattern.format(city)
            found.append(ToolQuestion(text=text, tool="get_weather", call=call, outcomes=(*skies, failed)))
    return found


def tool_call(name: str, arguments: dict[str, Any]) -> str:
    """One call as the function channel spells it."""
    return f"<TOOLCALL>{json.dumps([{'name': name, 'arguments': arguments}])}</TOOLCALL>"


def tool_response(result: Any) -> str:
    """One result as the function channel is told it."""
    return f"<TOOL_RESPONSE>{json.dumps([result])}</TOOL_RESPONSE>"


def tools_prompt(names: tuple[str, ...], *, schema: bool) -> str:
    """The part of a system prompt that offers these tools; with `schema`, parameters are a JSON schema."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    nothing = {"type": "object", "properties": {}}
    offers = {
        "get_time": {"description": "Tells the time", "name": "get_time", "parameters": nothing if schema else {}},
        "get_weather": {
            "description": "Tells the weather in a city",
            "name": "get_weather",
            "parameters": city if schema else {"city": "string"},
        },
    }
    listed = json.dumps([offers[name] for name in names], sort_keys=True)
    return f"<AVAILABLE_TOOLS>{listed}</AVAILABLE_TOOLS>"


def prompts() -> dict[str, list[str]]:
    """Form → the system prompts that ask for it."""
    listed: dict[str, list[str]] = tables()["prompts"]
    return listed


def unknown_sentences() -> list[str]:
    """Sentences that the model hears but has no answer to."""
    table = tables()["unknown"]
    return [f"{beginning} {thing}?" for beginning in table["beginnings"] for thing in table["things"]]


def unknown_answer() -> str:
    """What is said to all of them."""
    answer: str = tables()["unknown"]["answer"]
    return answer


def answer_texts() -> list[str]:
    """Every answer that may have to be spoken, each once."""
    answers = [answer for question in questions() for answer in question.answers.values()]
    answers += [answer for tool in tool_questions() for _, by_form in tool.outcomes for answer in by_form.values()]
    return list(dict.fromkeys([*answers, unknown_answer()]))
