"""The report as a picture: relative RMS by layer on a logarithmic axis, with the tolerance drawn.

Ids that are all equal have no place on such an axis: they stand at its left edge as "exact".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from voicechat_mlx.report.rows import Row
from voicechat_mlx.report.table import sections

EDGES = (1e-10, 1.0)
"""Of the error axis; float32 resolves 6e-8, and at 1 the two sides have nothing in common."""
COLOURS = ("#1f5fa8", "#e08214", "#2a9d6f", "#8e5bb5", "#c2456f", "#3aa6c9", "#8c6d31", "#6b7280", "#111111")
SHAPES = "osD^vPXd*"
FAILED, EXACT = "#d11a2a", "#2a7d4f"
ROW_INCHES = 0.175
TITLE = "MLX against the PyTorch twin: relative RMS error of each layer"
TITLE_ROWS = 8
"""Height of a panel's title and axis, in rows."""


def draw(rows: Sequence[Row], path: Path, title: str = TITLE) -> None:
    """A panel for each section that measures RMS: the longest to the left, the others below each other to its right."""
    measured = [(name, [row for row in group if row.unit in ("RMS", "ids")]) for name, group in sections(rows)]
    panels = [panel for panel in measured if any(row.unit == "RMS" for row in panel[1])]
    panels.sort(key=lambda panel: -len(layers_of(panel[1])))
    halves = [half for half in (panels[:1], panels[1:]) if half]
    heights = [[len(layers_of(group)) + TITLE_ROWS for _, group in half] for half in halves]
    figure = Figure(figsize=(8 * len(halves), ROW_INCHES * max(map(sum, heights)) + 0.6), layout="constrained")
    figure.suptitle(title, fontsize=14, fontweight="bold")
    for place, (half, ratios) in enumerate(zip(halves, heights, strict=True)):
        part = figure.subfigures(1, len(halves), squeeze=False)[0, place]
        axes = part.subplots(len(half), 1, height_ratios=ratios, squeeze=False)[:, 0]
        for axis, (section, group) in zip(axes, half, strict=True):
            draw_panel(axis, section, group)
    figure.savefig(path, dpi=110, format="png")


def draw_panel(axis: Axes, title: str, rows: Sequence[Row]) -> None:
    """Layers from top to bottom, one mark for each run; what fails is red and large."""
    lines = {layer: line for line, layer in enumerate(layers_of(rows))}
    for line in range(0, len(lines), 2):
        axis.axhspan(line - 0.5, line + 0.5, color="#f4f5f7", zorder=0)
    for place, run in enumerate(dict.fromkeys(row.run for row in rows)):
        good = [row for row in rows if row.run == run and row.passed and row.unit == "RMS"]
        style = {"color": COLOURS[place % len(COLOURS)], "marker": SHAPES[place % len(SHAPES)], "s": 26}
        scatter(axis, good, lines, label=run, **style)
    bad = [row for row in rows if not row.passed]
    if bad:
        scatter(axis, bad, lines, label="FAILS", color=FAILED, marker="X", s=80)
    draw_tolerances(axis, rows, lines)
    write_exact(axis, rows, lines)
    axis.set_xscale("log")
    axis.set_xlim(*EDGES)
    axis.set_ylim(len(lines) - 0.4, -0.6)
    axis.set_yticks(range(len(lines)), list(lines), fontsize=7.5)
    axis.set_xlabel("relative RMS error, rms(MLX − twin) / rms(twin), no unit; left edge: identical", fontsize=8.5)
    axis.set_title(title, fontsize=10.5, loc="left")
    axis.grid(axis="x", color="#d8dade", linewidth=0.6)
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
    near_the_right = median(map(place_of, rows)) > 1e-4
    axis.legend(fontsize=8, loc="lower left" if near_the_right else "lower right", title="run", title_fontsize=8.5)


def scatter(axis: Axes, rows: Sequence[Row], lines: dict[str, int], **style: Any) -> None:
    """One mark for each row."""
    at = [place_of(row) for row in rows], [lines[row.layer] for row in rows]
    axis.scatter(*at, linewidths=0.5, edgecolors="white", zorder=3, clip_on=False, **style)


def draw_tolerances(axis: Axes, rows: Sequence[Row], lines: dict[str, int]) -> None:
    """A bar across each judged layer's line, or two where runs are judged differently."""
    judged = (row for row in rows if row.unit == "RMS" and row.tolerance is not None)
    limits = dict.fromkeys((row.layer, row.tolerance or 0.0) for row in judged)
    low, high = ([lines[layer] + half for layer, _ in limits] for half in (-0.5, 0.5))
    axis.vlines([limit for _, limit in limits], low, high, color=FAILED, linewidth=1.6, label="tolerance", zorder=2)


def write_exact(axis: Axes, rows: Sequence[Row], lines: dict[str, int]) -> None:
    """A word, where every id of every run is the same."""
    wrong = {row.layer for row in rows if not row.passed}
    for layer in dict.fromkeys(row.layer for row in rows if row.unit == "ids"):
        if layer not in wrong:
            axis.text(EDGES[0] * 1.4, lines[layer], "ids exact", fontsize=7.5, color=EXACT, va="center_baseline")


def place_of(row: Row) -> float:
    """Where a row stands on the axis; what cannot be measured at its right edge, identical arrays at its left."""
    error = row.error if row.unit == "RMS" else float(not row.passed)
    return EDGES[1] if row.fault else min(max(error, EDGES[0]), EDGES[1])


def layers_of(rows: Sequence[Row]) -> list[str]:
    """Each layer once, in the order of the data flow."""
    return list(dict.fromkeys(row.layer for row in rows))
