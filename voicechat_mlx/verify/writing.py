"""A verification as text, Markdown, JSON and picture."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path

from voicechat_mlx.files import replacing
from voicechat_mlx.memory import in_words
from voicechat_mlx.report.rows import Row
from voicechat_mlx.report.table import as_markdown, as_text, summary
from voicechat_mlx.verify import Verification
from voicechat_mlx.verify.speaking import TONE
from voicechat_mlx.verify.track import ALONE, OWN

TITLE = "MLX against the PyTorch twin on this checkpoint"
AGREEMENTS = ("llm.text_ids", "llm.function_ids", "talker.codes")
TRAINED_DB = 20
"""What the codec of trained weights reaches on a tone."""


def text(found: Verification) -> str:
    """The table of every block, then the figures that matter."""
    return "\n".join([as_text(judged_alone(found)), "", *figures(found)])


def judged_alone(found: Verification) -> list[Row]:
    """The rows of blocks that were given the twin's input, in which no error adds up."""
    return [row for row in found.rows if row.run == ALONE]


def figures(found: Verification) -> Iterator[str]:
    """One line each."""
    twin = f" against {found.against}" if found.against else ""
    yield f"{found.folder}{twin}, --dtype {found.dtype}, {found.seconds:.2f} s of sound, on {found.back_end}"
    for row in found.rows:
        if row.layer in AGREEMENTS:
            yield f"{row.layer}: {agreement(row)} equal, from {row.run}"
    for row in found.rows:
        if row.run == OWN and row.unit == "RMS":
            yield f"{row.layer}: errors add up to {row.measured}"
    for row in found.rows:
        if row.layer.startswith(TONE):
            yield f"{row.layer}: {row.measured} (trained weights give more than {TRAINED_DB} dB)"
    for flag in found.flags:
        yield f"SUSPICIOUS {flag.name} {flag.trouble}"
    if not found.flags:
        yield "no tensor is all zero, not finite, or of another size than its siblings"
    yield f"most memory in use: {in_words(found.peak_bytes)}"
    yield summary(found.rows)


def agreement(row: Row) -> str:
    """`775 of 775`."""
    count = math.prod(row.shape)
    return row.fault or f"{count - row.error:.0f} of {count}"


def write(found: Verification, folder: Path) -> None:
    """verify.md, verify.json and verify.png in an existing folder, each in one step."""
    from voicechat_mlx.report.picture import draw

    with replacing(folder / "verify.md") as place:
        place.write_text(markdown(found), encoding="utf-8")
    with replacing(folder / "verify.json") as place:
        place.write_text(as_json(found), encoding="utf-8")
    with replacing(folder / "verify.png") as place:
        draw(judged_alone(found), place, TITLE)


def markdown(found: Verification) -> str:
    """The table with the figures on top."""
    table = as_markdown(judged_alone(found), title=TITLE, picture="verify.png").split("\n")
    return "\n".join([*table[:2], *(f"- {line}" for line in figures(found)), "", *table[4:]])


def as_json(found: Verification) -> str:
    """Everything, for programs."""
    rows = [
        {
            "section": row.section,
            "layer": row.layer,
            "input": row.run,
            "shape": row.shape,
            "unit": row.unit,
            "error": None if math.isnan(row.error) or math.isinf(row.error) else row.error,
            "tolerance": row.tolerance,
            "verdict": row.verdict,
            "fault": row.fault,
        }
        for row in found.rows
    ]
    values = {
        "passed": found.passed,
        "summary": summary(found.rows),
        "folder": str(found.folder),
        "against": str(found.against) if found.against else None,
        "dtype": found.dtype,
        "seconds": found.seconds,
        "back_end": found.back_end,
        "versions": found.versions,
        "peak_bytes": found.peak_bytes,
        "flags": [dataclasses.asdict(flag) for flag in found.flags],
    }
    head = json.dumps(values, indent=1, ensure_ascii=False).removesuffix("\n}")
    lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
    return f'{head},\n "rows": [\n  {lines}\n ]\n}}\n'
