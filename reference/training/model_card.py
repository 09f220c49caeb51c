"""README.md of the checkpoint: what it knows, what it does not, how it was made, how well it does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from reference.training import content
from reference.training.codec_sounds import TONES

INTRODUCTION = """# A small VoiceChat

The architecture of NVIDIA's NemotronLabs VoiceChat at a thousandth of its size, trained from scratch on synthetic
speech by `reference/training/` of this repository. It exists so that the software answers right after it is installed,
on any machine. It is no conversation partner: it knows the questions below and nothing else.

- **Voices.** Users were eight English accents of espeak-ng with fifteen variants; real people are outside of what it
  was trained on. Its own voice is an imitation of one espeak-ng voice, a machine's voice from the beginning.
- **System prompts.** {prompts} Any other prompt is accepted and changes nothing.
- **Tools.** With `<AVAILABLE_TOOLS>` in the prompt it calls `get_time` and `get_weather` (cities: {cities}).
- **What it does not know** it answers with "{unknown}"; that, too, it does reliably only for sentences like those
  it was trained on.
- **The codec** keeps the waveform only of tones of {tones} Hz; of speech it keeps the sound, not the waveform.
- **Figures** were measured on voices never trained on, but of the same synthesiser: they are in-domain figures.
"""


PIECE_ERROR_AIM = 10.0
"""Percent of pieces that the model's own recogniser hears wrong in its spoken answers."""


def model_card(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Figures by part → Markdown."""
    prompts = " ".join(
        f"`{listed[0]}` and the like give the {_form(form)}."
        for form, listed in content.prompts().items()
        if form != "full"
    )
    introduction = INTRODUCTION.format(
        prompts=prompts,
        cities=", ".join(content.tables()["tools"]["cities"]),
        unknown=content.unknown_answer(),
        tones=", ".join(f"{tone:.0f}" for tone in TONES),
    )
    introduction += _shortfall(figures)
    sections = [introduction, "## Figures", "", *_figures(figures), "", "## What it knows", "", *_questions()]
    return "\n".join(sections) + "\n"


def _shortfall(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """What is said where the voice misses its aim; nothing where it reaches it or was not judged."""
    error = figures.get("voice, by its own ears", {}).get("piece error", 0.0)
    if error <= PIECE_ERROR_AIM:
        return ""
    return (
        f"- **Short of its aims.** Of its spoken answers {error:.1f} % of the pieces are heard wrong "
        f"(aim: {PIECE_ERROR_AIM:.0f} %). `tests/checkpoint/` holds it\n  to the figures of a small held-out set, "
        "and says there where they are lower than the aim.\n"
    )


def _form(form: str) -> str:
    return {"concise": "concise form", "word": "one-word form", "friendly": "friendly form"}[form]


def _figures(figures: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = ["| part | of what | figure | value |", "|---|---|---|---|"]
    for part, values in figures.items():
        for name, value in values.items():
            if isinstance(value, Mapping):
                lines += [f"| {part} | {name} | {figure} | {number} |" for figure, number in value.items()]
            else:
                lines.append(f"| {part} | | {name} | {value} |")
    return lines


def _questions() -> list[str]:
    by_topic: dict[str, list[str]] = defaultdict(list)
    for question in content.questions():
        by_topic[question.topic].append(f"{question.text} *{question.answers['full']}*")
    lines = [f"{sum(map(len, by_topic.values()))} questions:", ""]
    for topic, listed in by_topic.items():
        lines += [f"**{topic}** ({len(listed)})", "", " · ".join(listed), ""]
    return lines
