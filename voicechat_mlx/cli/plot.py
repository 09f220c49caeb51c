"""The 80 ms timeline as a picture: what was said, what was understood, what was answered, and when.

matplotlib is an extra; it is drawn on directly, without pyplot, so no window system and no global state is involved.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from voicechat_mlx.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Label = tuple[int, str]
"""(frame index, text that became certain in it)."""

INCHES_PER_FRAME = 0.12
"""One line of rotated type fits, so labels never overlap."""
WIDTHS = (8.0, 250.0)
"""Narrowest and widest picture, inches at 100 dots each."""
WAVE_COLUMN_SECONDS = 0.005
LONGEST_LABEL = 16
"""Letters of a text that are shown."""
INCHES_PER_LETTER = 0.085
"""At the size of the labels; a row of text is as high as its longest needs."""
COLOURS = {"question": "#3b6ea5", "answer": "#b5562d", "text": "#222222", "grid": "#e4e4e4", "second": "#b8b8b8"}


@dataclass(frozen=True, kw_only=True)
class Wave:
    """Sound with its rate in Hz."""

    samples: npt.NDArray[np.float32]
    sample_rate: int


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Everything that is drawn; all frames count from the start of the recording."""

    frames: int
    frame_seconds: float
    question: Wave
    transcript: Sequence[Label]
    text: Sequence[Label]
    function: Sequence[Label]
    """Left out of the picture when there is none."""
    answer: Wave


def require_matplotlib() -> None:
    """Raises InputError with the command that installs it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("--plot needs matplotlib; install it with: pip install 'matplotlib>=3.9'")


def draw(timeline: Timeline, place: Path) -> None:
    """Write the picture as PNG, whatever the name says."""
    from matplotlib.figure import Figure

    labels = {"transcript": timeline.transcript, "answer\ntext": timeline.text, "function": timeline.function}
    labels = {title: row for title, row in labels.items() if row or title != "function"}
    heights = [1.0, *map(_height_of, labels.values()), 1.0]
    narrowest, widest = WIDTHS
    width = min(max(narrowest, timeline.frames * INCHES_PER_FRAME + 1.0), widest)
    figure = Figure(figsize=(width, sum(heights) + 0.8), dpi=100, layout="constrained")
    rows = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    _draw_wave(rows[0], "question", timeline.question)
    for axes, (title, row) in zip(rows[1:-1], labels.items(), strict=True):
        _draw_labels(axes, title, row, timeline.frame_seconds)
    _draw_wave(rows[-1], "answer", timeline.answer)
    for axes in rows:
        _draw_grid(axes, timeline)
    rows[-1].set_xlabel(f"seconds; one cell is a frame of {1000 * timeline.frame_seconds:.0f} ms")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a box instead of a rare letter
        figure.savefig(place, format="png")


def _draw_wave(axes: Axes, title: str, wave: Wave) -> None:
    """The envelope: lowest and highest sample of each 5 ms."""
    starts = np.arange(0, max(len(wave.samples), 1), max(1, round(WAVE_COLUMN_SECONDS * wave.sample_rate)))
    samples = wave.samples if len(wave.samples) else np.zeros(1, np.float32)
    lowest, highest = np.minimum.reduceat(samples, starts), np.maximum.reduceat(samples, starts)
    axes.fill_between(starts / wave.sample_rate, lowest, highest, color=COLOURS[title], linewidth=0.6, step="post")
    peak = max(1e-3, 1.05 * float(np.abs(samples).max()))
    axes.set_ylim(-peak, peak)
    axes.set_ylabel(title, rotation=0, ha="right", va="center")
    axes.tick_params(axis="y", labelsize=7)


def _shown(text: str) -> str:
    """A label's text; a dot stands for what has no shape, spaces around it are left out."""
    shown = "".join(letter if letter.isprintable() else "·" for letter in text).strip()
    return shown if len(shown) <= LONGEST_LABEL else shown[: LONGEST_LABEL - 1] + "…"


def _height_of(row: Sequence[Label]) -> float:
    """Inches that a row of texts needs."""
    return max(0.5, 0.2 + INCHES_PER_LETTER * max((len(_shown(text)) for _, text in row), default=0))


def _draw_labels(axes: Axes, title: str, row: Sequence[Label], frame_seconds: float) -> None:
    """Each text upright in its frame's cell."""
    for frame, text in row:
        place = (frame + 0.5) * frame_seconds
        axes.text(
            place,
            0.05,
            _shown(text),
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=9,
            color=COLOURS["text"],
            parse_math=False,
        )
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.set_ylabel(title, rotation=0, ha="right", va="center")


def _draw_grid(axes: Axes, timeline: Timeline) -> None:
    """A faint line at each frame, a stronger one at each second."""
    end = timeline.frames * timeline.frame_seconds
    axes.set_xlim(0, end)
    axes.set_xticks(np.arange(0, end + 1e-9, 1.0))
    axes.set_xticks(np.arange(timeline.frames + 1) * timeline.frame_seconds, minor=True)
    axes.grid(axis="x", which="minor", color=COLOURS["grid"], linewidth=0.5)
    axes.grid(axis="x", which="major", color=COLOURS["second"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", which="minor", length=0)
