from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.parity.agreement import assert_agreement
from tests.parity.command import compare_command
from tests.parity.report import report
from voicechat_mlx.report.rows import Row, compare, compare_ids, compare_snr, labelled
from voicechat_mlx.report.table import as_text


def test_the_command_writes_what_the_twin_computes(tmp_path: Path) -> None:
    assert_agreement(compare_command(tmp_path))


def rows_of(run: str, error: float) -> list[Row]:
    ones = np.ones((2, 3))
    rows = [
        compare("a.layer", ones + error, ones, 2e-5),
        compare_ids("some.ids", ones, ones),
        compare_snr("a.wave", ones + error, ones, 80.0),
        compare("another.layer", ones + 0.01, ones, None),
    ]
    return list(labelled(rows, section="Blocks", run=run))


def test_the_table_shows_the_worst_run_of_each_layer() -> None:
    assert as_text(rows_of("first", 1e-6) + rows_of("second", 1e-5)).splitlines() == [
        "layer          shape   relative RMS  tolerance  verdict",
        "",
        "Blocks (worst of: first, second)",
        "a.layer        2 × 3        1.0e-05    ≤ 2e-05  ok",
        "some.ids       2 × 3  0 of 6 differ      exact  ok",
        "a.wave         2 × 3      100.00 dB    ≥ 80 dB  ok",
        "another.layer  2 × 3        1.0e-02          –  measured",
    ]


def test_the_report_is_written_as_markdown_and_as_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "build" / "parity"
    answered = [compare_ids("audio_codes", np.arange(3), np.arange(3))]
    assert report(rows_of("first", 1e-6) + rows_of("second", 1e-5), lambda: answered, output) == 0
    markdown = (output / "parity.md").read_text(encoding="utf-8")
    assert "| a.layer | 2 × 3 | 1.0e-05 | ≤ 2e-05 | ok |" in markdown
    assert "| first | a.layer | 2 × 3 | 1.0e-06 | ≤ 2e-05 | ok |" in markdown
    assert "All 9 comparisons are within tolerance." in markdown
    assert "All 9 comparisons are within tolerance." in capsys.readouterr().out
    assert (output / "parity.png").read_bytes().startswith(b"\x89PNG")
