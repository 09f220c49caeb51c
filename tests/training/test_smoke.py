"""Every recipe at its tiny settings, one after another, as a user would run them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import voicechat_mlx

STEPS = ("codec", "perception", "decoder", "talker", "duplex")


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", *map(str, arguments)]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    ran = subprocess.run(
        command("reference.training.run_all", "--work", folder, "--settings", "smoke", "--pack", folder / "packed"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_losses_fall(work: Path, step: str) -> None:
    losses = [entry["loss"] for entry in json.loads((work / step / "curve.json").read_text())]
    assert losses[-1] < losses[0]
    assert (work / step / "curve.png").is_file()


@pytest.mark.slow
def test_the_export_loads_and_answers(work: Path) -> None:
    model = voicechat_mlx.load(work / "checkpoint")
    result = voicechat_mlx.generate(model, np.zeros(16000, np.float32), extra_decoding_seconds=0.5)
    assert result.audio.shape == (result.frames * 1764,) and np.isfinite(result.audio).all()


@pytest.mark.slow
def test_a_packed_run_unpacks_to_the_same_weights(work: Path, tmp_path: Path) -> None:
    from reference.training.model_files import load_tensors
    from reference.training.packing import unpack

    unpack(work / "packed", tmp_path)
    for step in STEPS:
        before, after = load_tensors(work / step), load_tensors(tmp_path / step)
        assert before.keys() == after.keys() and all((before[name] == after[name]).all() for name in before)
    assert max(path.stat().st_size for path in (work / "packed").iterdir()) <= 16 * 2**20
    assert (tmp_path / "talker" / "figures.json").is_file()


@pytest.mark.slow
def test_the_same_command_does_nothing_twice(work: Path) -> None:
    ran = subprocess.run(
        command("reference.training.codec", "--work", work, "--settings", "smoke"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "is complete" in ran.stdout


@pytest.mark.slow
def test_held_out_cases_are_judged(work: Path, tmp_path: Path) -> None:
    counts = ("1", "1", "1", "0", "1", "1")
    subprocess.run(
        command("reference.training.heldout", "--work", work, "--out", tmp_path / "cases", "--counts", *counts),
        capture_output=True,
        check=True,
    )
    cases = json.loads((tmp_path / "cases" / "cases.json").read_text())
    assert [case["kind"] for case in cases] == ["one question", "forms", "two questions", "tools", "silence and noise"]
    subprocess.run(
        command(
            "reference.training.evaluate",
            "--checkpoint", work / "checkpoint",
            "--cases", tmp_path / "cases",
            "--json", tmp_path / "figures.json",
        ),
        capture_output=True,
        check=True,
    )  # fmt: skip
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["silence and noise"]["silent on noise"] == 100.0
    assert figures["transcripts"]["cases"] == 4
