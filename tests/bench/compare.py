"""We and mlx-vlm side by side, in one run, on the same weights: python -m tests.bench.compare.

Both run in turn, several times, since other work on the machine comes and goes. Each pair of neighbouring runs gives a
ratio for every figure; the middle one of them counts, and for the totals it must stay below the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tests.bench.checkpoints import SIZES, make_checkpoint
from tests.bench.measure import STAGES
from tests.bench.peer import CACHE, MEASURED, peer_python

ROOT = Path(__file__).parents[2]
QUESTION = ROOT / "fixtures" / "question.wav"
LIMIT, GOAL = 0.7, 0.5
BLAS = ("openblas", "own")
"""OpenBLAS for both programs, or for neither."""
FRAMES_TO_COMPARE_AUDIO = 8
"""The peer plays arbitrary codes at position 0, which colour the next few frames; from here on the sound must agree."""
AUDIO_TOLERANCE = 1e-4  # absolute, of samples within ±1: float32 summed in another order

Run = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    what: str
    ours: float
    ours_p95: float | None
    peer: float
    peer_p95: float | None
    ratio: float
    judged: bool
    """Whether the limit applies: to totals, not to single stages."""


def main() -> None:
    """Measure, print, write, judge."""
    options = _options()
    failures, tables = [], []
    for size in options.sizes:
        checkpoint = make_checkpoint(size, CACHE / "checkpoints" / size)
        for blas in options.blas:
            pairs = run_in_turn(checkpoint, blas, options)
            rows = [*stream_rows(pairs), *offline_rows(pairs)]
            tables.append(as_table(f"{size}, {_blas_in_words(blas, pairs)}", rows))
            print(tables[-1], flush=True)
            failures += [f"{size}, {blas}: {line}" for line in differences(pairs[0]) + too_slow(rows, options.limit)]
    if options.report:
        options.report.write_text("\n".join(tables), encoding="utf-8")
    if failures:
        sys.exit("\n".join(failures))


def run_in_turn(checkpoint: Path, blas: str, options: argparse.Namespace) -> list[tuple[Run, Run]]:
    """(ours, peer) for each round, the order changing from round to round: ABBA."""
    ours, peer = [sys.executable, "-m", "tests.bench.ours"], [str(peer_python()), "tests/bench/peer_mlx_vlm.py"]
    arguments = [str(checkpoint), str(QUESTION), "--frames", str(options.frames), "--modes", str(options.modes)]
    arguments += ["--seconds", *map(str, options.seconds)]
    pairs = []
    for round in range(options.rounds):
        commands = [[*ours, *arguments], [*peer, *arguments]]
        if round % 2:
            second, first = (_run(command, blas) for command in reversed(commands))
        else:
            first, second = (_run(command, blas) for command in commands)
        pairs.append((first, second))
    return pairs


def stream_rows(pairs: list[tuple[Run, Run]]) -> list[Row]:
    """Milliseconds per 80 ms frame, by stage and in all: the middle frame and the 95th percentile."""
    rows = []
    for stage in (*STAGES, "total"):
        frames = [[np.array([frame[stage] for frame in run["stream"]]) for run in pair] for pair in pairs]
        ours, peer = (np.concatenate(side) for side in zip(*frames, strict=True))
        rows.append(
            Row(
                what=f"{stage}, ms per frame",
                ours=float(np.median(ours)),
                ours_p95=float(np.percentile(ours, 95)),
                peer=float(np.median(peer)),
                peer_p95=float(np.percentile(peer, 95)),
                ratio=median(float(np.median(a) / np.median(b)) for a, b in frames),
                judged=stage == "total",
            )
        )
    return rows


def offline_rows(pairs: list[tuple[Run, Run]]) -> list[Row]:
    """Seconds for whole recordings. We have one way to answer them; the peer's are compared with it one by one."""
    rows = []
    for mode, by_length in pairs[0][1]["offline"].items():
        for length in by_length:
            ours = [next(iter(a["offline"].values()))[length] for a, _ in pairs]
            peer = [b["offline"][mode][length] for _, b in pairs]
            rows.append(
                Row(
                    what=f"offline {length} s, peer {mode}, s",
                    ours=median(ours),
                    ours_p95=None,
                    peer=median(peer),
                    peer_p95=None,
                    ratio=median(a / b for a, b in zip(ours, peer, strict=True)),
                    judged=True,
                )
            )
    return rows


def as_table(title: str, rows: list[Row]) -> str:
    """Markdown."""
    lines = [f"### {title}", "", f"| | ours (p95) | {MEASURED[0]} (p95) | ratio |", "|---|---|---|---|"]
    for row in rows:
        ours, peer = _figure(row.ours, row.ours_p95), _figure(row.peer, row.peer_p95)
        lines.append(f"| {row.what} | {ours} | {peer} | {row.ratio:.2f} |")
    return "\n".join([*lines, ""])


def too_slow(rows: list[Row], limit: float) -> list[str]:
    """One line for each total that takes more than `limit` of the peer's time."""
    slow = [row for row in rows if row.judged and row.ratio > limit]
    return [
        f"{row.what}: {row.ratio:.2f} of the peer's time, more than {limit} allows (ours {row.ours:.2f}, "
        f"the peer's {row.peer:.2f}, goal {GOAL})"
        for row in slow
    ]


def differences(pair: tuple[Run, Run]) -> list[str]:
    """One line for each way in which the two answers differ: they must be the same, or the times say nothing."""
    ours, peer = (run["answer"] for run in pair)
    same = {
        "text ids": ours["text"] == peer["text"],
        "transcripts": ours["transcript"] == peer["transcript"],
        "codes": ours["codes"][1:] == peer["codes"][1:],  # the peer writes zeros at position 0
    }
    sounds = [np.array(answer["audio"]) for answer in (ours, peer)]
    start = FRAMES_TO_COMPARE_AUDIO * len(sounds[0]) // len(ours["codes"])
    same["sounds"] = len(sounds[0]) == len(sounds[1]) and bool(
        np.abs(sounds[0][start:] - sounds[1][start:]).max() <= AUDIO_TOLERANCE
    )
    return [f"the {what} of the two programs differ on the same weights" for what, equal in same.items() if not equal]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure this package and mlx-vlm in turn on the same checkpoints.")
    parser.add_argument("--sizes", nargs="*", choices=[*SIZES], default=[*SIZES])
    parser.add_argument("--blas", nargs="*", choices=BLAS, default=["openblas"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--frames", type=int, default=60, help="frames of the stream in each run")
    parser.add_argument("--seconds", type=int, nargs="*", default=[1, 2, 4, 8], help="lengths of whole recordings")
    parser.add_argument("--modes", type=int, choices=(1, 2), default=1, help="2: the peer's default, too")
    parser.add_argument("--limit", type=float, default=LIMIT, help="of the peer's time, for every total")
    parser.add_argument("--report", type=Path, help="also write the tables, as Markdown")
    return parser.parse_args()


def _run(command: list[str], blas: str) -> Run:
    switches = {"VOICECHAT_NO_OPENBLAS": "0", "BENCH_OPENBLAS": "1"}
    if blas == "own":
        switches = {"VOICECHAT_NO_OPENBLAS": "1", "BENCH_OPENBLAS": "0"}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | switches, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def _blas_in_words(blas: str, pairs: list[tuple[Run, Run]]) -> str:
    about = pairs[0][0]["about"]
    return f"{about['BLAS']}, MLX {about['mlx']}, threads: {about['threads']}, {len(pairs)} rounds"


def _figure(value: float, p95: float | None) -> str:
    return f"{value:.2f}" if p95 is None else f"{value:.2f} ({p95:.2f})"


if __name__ == "__main__":
    main()
