"""What a parity test asserts."""

from __future__ import annotations

from collections.abc import Iterable

from voicechat_mlx.report.rows import Row


def assert_agreement(rows: Iterable[Row]) -> None:
    """Something was compared, and all of it passed."""
    found = list(rows)
    assert found, "nothing was compared"
    failed = [f"{row.layer} {row.shape}: {row.measured}, tolerance {row.allowed}" for row in found if not row.passed]
    assert not failed, "; ".join(failed)
