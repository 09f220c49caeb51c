"""Failures while running: one line on stderr, exit code 1, the old file untouched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import voicechat_mlx
from tests.unit.cli_helpers import QUESTION, check_refused, place, result
from voicechat_mlx.cli.__main__ import main
from voicechat_mlx.errors import SessionError

__all__ = ["place"]  # a fixture


@pytest.fixture
def failing(place, monkeypatch) -> Callable[[object], list[str]]:
    """Makes `generate` fail with an exception, or return a value; gives the command line to run."""

    def prepare(outcome: object) -> list[str]:
        def run(*_: object, **__: object) -> object:
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        monkeypatch.setattr(voicechat_mlx, "load", lambda *_, **__: None)
        monkeypatch.setattr(voicechat_mlx, "generate", run)
        return ["generate", "--audio", QUESTION, "--output-audio", "old.wav"]

    return prepare


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (RuntimeError("[metal] lost\nthe device"), r"RuntimeError: \[metal\] lost the device; --debug shows where"),
        (MemoryError("64 GB"), r"out of memory \(64 GB\)"),
        (SessionError("this session is finished"), "this session is finished"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_failures_are_one_line_and_leave_the_old_file(failing, capsys, outcome, message) -> None:
    check_refused(capsys, failing(outcome), message, code=1)


def test_debug_shows_where_a_failure_happened(failing, capsys) -> None:
    assert main([*failing(RuntimeError("lost")), "--debug"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("Traceback") and error.endswith("voicechat: RuntimeError: lost; --debug shows where\n")


def test_an_answer_that_is_not_finite_is_not_written(failing, capsys) -> None:
    assert main(failing(result(audio=np.float32([0, np.nan])))) == 1
    assert "sample 1 of the answer is nan, so it was not written" in capsys.readouterr().err
    assert Path("old.wav").read_bytes() == b"old"
