"""`voicechat serve` as a process: its line, its refusals, its end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.server.client import asking_for, client
from voicechat_mlx.cli.__main__ import build_parser, main
from voicechat_mlx.cli.serve import require_packages
from voicechat_mlx.errors import InputError
from voicechat_mlx.server.running import bind

COMMAND = [sys.executable, "-m", "voicechat_mlx.cli", "serve", "--port", "0"]


@contextmanager
def process(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server and its URL."""
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            line = started.stdout.readline()
            assert line.startswith("serving ") and " at http://127.0.0.1:" in line
            yield started, line.split(" at ")[1].split()[0]
        finally:
            started.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_peace_and_everybody_is_told(number: signal.Signals) -> None:
    with process() as (started, url), client(url, asking_for("frames")) as found:
        found.append(bytes(2 * 16000))
        found.until("voicechat.frame")
        started.send_signal(number)
        assert found.error()["code"] == "server_shutting_down"
        assert found.close_code() == (1001, "server_shutting_down")
        assert started.wait(20) == 0
        assert started.stderr is not None and "Traceback" not in started.stderr.read()


def test_a_model_that_is_not_there_ends_it_with_one_line() -> None:
    with process("-m", "no/such/folder/model") as (started, _):
        assert started.wait(30) == 2
        assert started.stderr is not None
        assert len(started.stderr.read().splitlines()) == 1


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of a command that was refused."""
    assert main(["serve", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--host", "0.0.0.0"], "--token"),
        (["--host", "::"], "--token"),
        (["--token", "two words"], "token"),
        (["--port", "70000"], "70000"),
        (["--max-sessions", "0"], "--max-sessions"),
        (["--idle-seconds", "nan"], "--idle-seconds"),
        (["--host", "203.0.113.7", "--token", "t", "--port", "0"], "203.0.113.7"),
        (["--host", "two..dots", "--token", "t", "--port", "0"], "two..dots"),
        (["--allow-origin", "example.org"], "example.org"),
        (["--allow-origin", "*"], "*"),
        (["--allow-origin", "https://example.org/page"], "https://example.org/page"),
        (["--allow-origin", "https://[x"], "https://[x"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], named: str
) -> None:
    assert named in refused(capsys, *words)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("https://example.org/", "https://example.org"),
        ("HTTPS://Example.org:443", "https://example.org"),
        ("http://example.org:80", "http://example.org"),
        ("http://example.org:8080", "http://example.org:8080"),
        ("http://[::1]:8765", "http://[::1]:8765"),
    ],
)
def test_an_origin_may_be_spelt_as_people_do(given: str, sent: str) -> None:
    words = ["serve", "--allow-origin", given]
    assert build_parser().parse_args(words).allow_origin == [sent]


def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in refused(capsys, "--port", str(port))


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "uvicorn" else object())
    with pytest.raises(InputError, match=r"pip install starlette uvicorn websockets"):
        require_packages()
