"""The report in words: one table, as text for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from voicechat_mlx.report.rows import Row, worst_of_each

HEADER = ("layer", "shape", "relative RMS", "tolerance", "verdict")


def cells(row: Row) -> tuple[str, ...]:
    """One row in the order of `HEADER`."""
    return row.layer, " × ".join(map(str, row.shape)) or "scalar", row.measured, row.allowed, row.verdict


def as_text(rows: Sequence[Row]) -> str:
    """The worst of all runs for each layer, in columns, under a line for each section."""
    lines = {section: [cells(row) for row in group] for section, group in sections(worst_of_each(rows))}
    table = [line for group in lines.values() for line in group]
    widths = [max(map(len, column)) for column in zip(HEADER, *table, strict=True)]
    parts = [columns(HEADER, widths)]
    for section, group in lines.items():
        parts += ["", heading(section, rows), *(columns(line, widths) for line in group)]
    return "\n".join(parts)


def as_markdown(
    rows: Sequence[Row], *, title: str = "Parity of MLX with the PyTorch twin", picture: str = "parity.png"
) -> str:
    """The same table, then every single measurement where there were several runs."""
    parts = [f"# {title}", "", summary(rows), "", f"![RMS by layer]({picture})", ""]
    for section, group in sections(worst_of_each(rows)):
        parts += [f"## {heading(section, rows)}", "", *markdown_table(HEADER, map(cells, group)), ""]
    if len({row.run for row in rows}) == 1:
        return "\n".join(parts)
    parts += ["## Every measurement", ""]
    for section, group in sections(rows):
        every = ((row.run, *cells(row)) for row in group)
        parts += [f"### {section}", "", *markdown_table(("run", *HEADER), every), ""]
    return "\n".join(parts)


def summary(rows: Sequence[Row]) -> str:
    """One sentence: how many comparisons, and where the first failure is."""
    failed = [row for row in rows if not row.passed]
    if not failed:
        return f"All {len(rows)} comparisons are within tolerance."
    first = failed[0]
    return (
        f"{len(failed)} of {len(rows)} comparisons FAIL, first {first.layer} ({first.section}, {first.run}): "
        f"{first.measured}, tolerance {first.allowed}."
    )


def heading(section: str, rows: Iterable[Row]) -> str:
    """The section and whose worst it shows."""
    runs = list(dict.fromkeys(row.run for row in rows if row.section == section))
    return f"{section} (worst of: {', '.join(runs)})" if len(runs) > 1 else f"{section} ({runs[0]})"


def sections(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    """Neighbouring rows of the same section together."""
    return [(section, list(group)) for section, group in groupby(rows, key=lambda row: row.section)]


def columns(line: Sequence[str], widths: Sequence[int]) -> str:
    """Names to the left, numbers to the right."""
    layer, shape, measured, allowed, verdict = (
        text.rjust(width) if place in (2, 3) else text.ljust(width)
        for place, (text, width) in enumerate(zip(line, widths, strict=True))
    )
    return f"{layer}  {shape}  {measured}  {allowed}  {verdict}".rstrip()


def markdown_table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """Pipes and dashes."""
    rule = ["---:" if name in HEADER[2:4] else "---" for name in header]
    return ["| " + " | ".join(line) + " |" for line in (header, rule, *lines)]
