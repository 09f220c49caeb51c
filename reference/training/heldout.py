"""Write held-out conversations as sound files, with what should come of them.

Their voices, speeds and noises were never trained on. Reads WORK/data. Writes OUT/NNN.flac (16 kHz mono, 16 bit) and
OUT/cases.json. `evaluate` plays them to a checkpoint.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reference.training.cases import KINDS, held_out_rows
from reference.training.content import transcript
from reference.training.data import USER_RATE, Clip, read_clips
from reference.training.model_files import read_tokenizer
from reference.training.options import step_parser
from reference.training.timelines import Planner, Row, Turn

LONGEST = 320
AFTER = 1600
"""Samples after the last sound of the user; `generate` adds its own silence."""
QUIET_SECONDS = 6.0


@dataclass(frozen=True)
class Case:
    """One file and what should come of it; frames are counted from the first audio frame."""

    file: str
    kind: str
    prompt: str
    noise: float
    transcript: str
    turns: tuple[Turn, ...]


def wave_of(
    row: Row, clips: Sequence[Clip], samples: NDArray[np.int16], noise: float, random: np.random.Generator
) -> NDArray[np.float32]:
    """The sound of a row, up to just after its last clip."""
    quiet = int(QUIET_SECONDS * USER_RATE) if not row.turns else 0
    length = max([quiet, *(start + clips[clip].length + AFTER for clip, start, _ in row.clips)])
    wave = np.zeros(length, np.float32)
    for index, start, gain in row.clips:
        clip = clips[index]
        wave[start : start + clip.length] += gain * samples[clip.offset : clip.offset + clip.length] / 32768
    return np.clip(wave + noise * random.standard_normal(length), -1, 1).astype(np.float32)


def heard_text(row: Row, clips: Sequence[Clip]) -> str:
    """What all clips of a row say."""
    return " ".join(filter(None, (transcript(clips[index].text) for index, _, _ in row.clips)))


def write(arguments: argparse.Namespace) -> None:
    """The whole command."""
    import soundfile

    random = np.random.default_rng(arguments.seed + 2)
    clips, samples, aria, _ = read_clips(arguments.work / "data")
    planner = Planner(clips, aria, read_tokenizer(arguments.work / "data"), "test")
    arguments.out.mkdir(parents=True, exist_ok=True)
    cases: list[Case] = []
    for kind, rows in held_out_rows(planner, LONGEST, 0, random).items():
        wanted = dict(zip(KINDS, arguments.counts, strict=True))[kind]
        for place in np.linspace(0, len(rows) - 1, min(wanted, len(rows))).round().astype(int):
            row = rows[place]
            noise = float(round(1e-4 * 100 ** random.random(), 6)) if random.random() < 0.5 else 0.0
            name = f"{len(cases):03d}.flac"
            prompt = planner.tokenizer.decode(row.prompt[1:-1], skip_special_tokens=False)
            soundfile.write(
                arguments.out / name, wave_of(row, clips, samples, noise, random), USER_RATE, subtype="PCM_16"
            )
            cases.append(Case(name, kind, prompt, noise, heard_text(row, clips), tuple(row.turns)))
    (arguments.out / "cases.json").write_text(json.dumps([asdict(case) for case in cases], indent=1) + "\n")
    print(f"heldout: {len(cases)} cases in {arguments.out}")


def read_cases(folder: Path) -> list[Case]:
    """OUT/cases.json."""
    cases = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    return [Case(**case | {"turns": tuple(Turn(**turn) for turn in case["turns"])}) for case in cases]


def main() -> None:
    """The command."""
    parser = step_parser("heldout", __doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--counts",
        type=int,
        nargs=len(KINDS),
        default=[100, 24, 20, 20, 12, 20],
        metavar="N",
        help=f"cases of: {', '.join(KINDS)}",
    )
    write(parser.parse_args())


if __name__ == "__main__":
    main()
