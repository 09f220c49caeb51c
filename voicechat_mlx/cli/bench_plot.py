"""A benchmark as a picture: what every frame of the stream took, stage upon stage, and what is usual.

Drawn without pyplot, as the timeline is.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from voicechat_mlx.benchmark import STAGES, WARM_UP_FRAMES, Benchmark

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#9aa5b1", "#3b6ea5", "#2a9d6f", "#e0a030", "#b5562d", "#7d5ba6")
"""For the stages in the order of the data flow."""
TOTAL, LIMIT = "#222222", "#d11a2a"


def draw(found: Benchmark, title: str, frame_seconds: float, place: Path) -> None:
    """Write the picture as PNG, whatever the name says."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.8), dpi=100, layout="constrained")
    figure.suptitle(title, fontsize=11, parse_math=False)
    frames, usual = figure.subplots(1, 2, width_ratios=[2.2, 1])
    _draw_frames(frames, found, frame_seconds)
    _draw_usual(usual, found)
    figure.savefig(place, format="png")


def _draw_frames(axes: Axes, found: Benchmark, frame_seconds: float) -> None:
    """Milliseconds of every frame; the line is the session as it runs, the areas are stages waited for one by one."""
    seconds = (WARM_UP_FRAMES + np.arange(found.frames)) * frame_seconds
    axes.stackplot(seconds, list(found.stage_ms.values()), labels=list(STAGES.values()), colors=COLOURS, step="mid")
    axes.step(seconds, found.total_ms, color=TOTAL, linewidth=1.0, where="mid", label="whole frame")
    _draw_limit(axes, found, frame_seconds * 1e3)
    axes.set_xlim(seconds[0], seconds[-1])
    axes.set_xlabel(f"seconds of speech; the first {WARM_UP_FRAMES} frames are not counted")
    axes.set_ylabel(f"ms per frame of {1e3 * frame_seconds:.0f} ms")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _draw_usual(axes: Axes, found: Benchmark) -> None:
    """Medians as bars, 95th percentiles as whiskers."""
    rows = {STAGES[stage]: timing for stage, timing in found.stages.items()} | {"whole frame": found.total}
    medians = [timing.median for timing in rows.values()]
    reach = [[0.0] * len(rows), [timing.p95 - timing.median for timing in rows.values()]]
    axes.barh(list(rows), medians, xerr=reach, color=[*COLOURS, TOTAL], error_kw={"ecolor": "#808080", "capsize": 2})
    for line, timing in enumerate(rows.values()):
        axes.annotate(
            f"{timing.median:.1f}",
            (timing.p95, line),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.set_title(f"real-time factor {found.real_time_factor:.2f}", fontsize=9)
    axes.set_xlabel("ms per frame: median,\nwhisker to the 95th percentile")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_limit(axes: Axes, found: Benchmark, frame_ms: float) -> None:
    """A line where computing takes as long as the sound lasts, if the figures come near it; and room at the top."""
    stacked = np.sum(list(found.stage_ms.values()), axis=0)
    highest = max(float(np.max(stacked)), max(found.total_ms))
    axes.set_ylim(0, 1.08 * highest)
    if highest > frame_ms / 2:
        axes.set_ylim(0, 1.08 * max(highest, frame_ms))
        axes.axhline(frame_ms, color=LIMIT, linewidth=1.2, linestyle="--", label="real time")
