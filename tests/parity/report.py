"""Parity as a report: python -m tests.parity.report [--output FOLDER]

One row for every layer: printed, and written as parity.md and parity.png. Only when all of them pass is the command
line itself run and compared. The exit code is 0 when everything agrees and 1 when anything does not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from fixtures.make_tiny import VARIANTS
from tests.parity.command import compare_command
from tests.parity.comparisons.all_blocks import compare_blocks
from tests.parity.comparisons.bfloat16 import compare_bfloat16
from tests.parity.pair import Checkpoints, load_pair
from tests.parity.whole_loop import ROOT, SCENARIOS, SPOKEN, Run, compare_loops
from voicechat_mlx.checkpoint import BUNDLED
from voicechat_mlx.report.picture import draw
from voicechat_mlx.report.rows import Row, first_failure, labelled
from voicechat_mlx.report.table import as_markdown, as_text, summary

BLOCKS = "One block at a time, the same input to both sides"
LOOP = "The whole loop, errors adding up"
TRAINED = "The bundled model, whose weights are trained: one block at a time"
TRAINED_LOOP = "The bundled model, the whole loop"
TRAINED_BFLOAT16 = "The bundled model, bfloat16 activations in MLX against float32 in the twin"
BFLOAT16 = "bfloat16 activations in MLX against float32 in the twin, network by network"
COMMAND = "python -m voicechat_mlx.cli generate against the twin's loop"
OUTPUT = ROOT / "build" / "parity"


def compare_everything(checkpoints: Checkpoints) -> Iterator[Row]:
    """Every comparison of the two models, section by section."""
    for variant in VARIANTS:
        yield from labelled(compare_blocks(checkpoints.pair(variant)), section=BLOCKS, run=variant)
    for scenario in SCENARIOS:
        pair = checkpoints.pair(scenario.variant, scenario.overrides)
        rows = compare_loops(pair, scenario.run, scenario.encoded_tolerance)
        yield from labelled(rows, section=LOOP, run=scenario.name)
    yield from labelled(compare_bfloat16(checkpoints.pair("bf16")), section=BFLOAT16, run="bf16")
    trained = load_pair(BUNDLED)
    yield from labelled(compare_blocks(trained), section=TRAINED, run="bundled")
    for name, run in (("whole answer", Run(extra_seconds=3.0)), ("prompt", SPOKEN)):
        yield from labelled(compare_loops(trained, run), section=TRAINED_LOOP, run=name)
    yield from labelled(compare_bfloat16(trained), section=TRAINED_BFLOAT16, run="bundled")


def report(rows: Iterable[Row], command: Callable[[], Iterable[Row]], output: Path) -> int:
    """Show and write the rows, then those of the command if all passed → exit code."""
    found = list(rows)
    write(found, output)
    print(as_text(found), end="\n\n")
    if first_failure(found):
        print(summary(found), "The command was not run.")
        return 1
    answered = list(labelled(command(), section=COMMAND, run="bundled model"))
    print(as_text(answered), end="\n\n")
    found += answered
    write(found, output)
    print(summary(found), f"Written to {output}: parity.md, parity.png")
    return 1 if first_failure(found) else 0


def write(rows: Sequence[Row], output: Path) -> None:
    """parity.md and parity.png."""
    output.mkdir(parents=True, exist_ok=True)
    (output / "parity.md").write_text(as_markdown(rows), encoding="utf-8")
    draw(rows, output / "parity.png")


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the checkpoints, compare, report."""
    parser = argparse.ArgumentParser(prog="python -m tests.parity.report", description="Compare MLX with its twin.")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder for parity.md and parity.png")
    output = parser.parse_args(arguments).output
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        rows = compare_everything(Checkpoints(Path(folder)))
        code = report(rows, lambda: compare_command(Path(folder)), output)
    print(f"{time.perf_counter() - started:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
