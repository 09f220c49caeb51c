"""Failures while running: one line on stderr, exit code 1, the old file untouched."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import voicechat_mlx
from tests.unit.cli_helpers import QUESTION, check_refused, place, result
from voicechat_mlx.cli.__main__ import main
from voicechat_mlx.cli.common import log_on_stderr
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


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        (
            "libcuda.so.1: cannot open shared object file: No such file or directory",
            r"needs NVIDIA's driver: install the driver, .* `pip uninstall -y mlx-cuda-12 .*`pip install 'mlx\[cpu\]'",
        ),
        ("libcudart.so.13: cannot open shared object file", r"libcudart.so.13: .*; if MLX needs it, .*'mlx\[cuda13\]'"),
        (
            "libmlx.so: cannot open shared object file",
            r"libmlx.so: .*; if MLX needs it, .*--force-reinstall 'mlx\[cpu\]'",
        ),
        ("cannot import name 'x' from 'y'", "--debug shows where"),
    ],
)
def test_a_library_that_mlx_lacks_is_named_with_the_way_to_get_it(failing, capsys, message, advice) -> None:
    check_refused(capsys, failing(ImportError(message)), f"ImportError: .*{advice}", code=1)


def test_an_error_line_cannot_steer_the_terminal(failing, capsys) -> None:
    check_refused(capsys, failing(SessionError("a\x1b[2J\x9b31mb")), r"voicechat: a\\x1b\[2J\\x9b31mb\n$", code=1)


def test_a_warning_cannot_steer_the_terminal(capsys) -> None:
    with log_on_stderr(debug=False):
        logging.getLogger("voicechat_mlx.audio").warning("%s ends early", "a\x1b[2J.wav")
    assert capsys.readouterr().err == "voicechat: a\\x1b[2J.wav ends early\n"


def test_debug_shows_where_a_failure_happened(failing, capsys) -> None:
    assert main([*failing(RuntimeError("lost")), "--debug"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("Traceback") and error.endswith("voicechat: RuntimeError: lost; --debug shows where\n")


def test_an_answer_that_is_not_finite_is_not_written(failing, capsys) -> None:
    assert main(failing(result(audio=np.float32([0, np.nan])))) == 1
    assert "sample 1 of the answer is nan, so it was not written" in capsys.readouterr().err
    assert Path("old.wav").read_bytes() == b"old"
