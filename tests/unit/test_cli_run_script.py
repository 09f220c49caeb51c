"""`./run`: its help, its refusals, and that `demo` works on the caller's files with the caller's options."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A checkout with a nox that tells how it was called."""
    folder = tmp_path / "the checkout"
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    shutil.copy(ROOT / "run", folder / "run")
    (programs / "python").symlink_to(sys.executable)
    (programs / "nox").write_text('#!/bin/sh\npwd\nprintf "<%s>" "$@"\n', encoding="utf-8")
    (programs / "nox").chmod(0o755)
    return folder


def run(*words: str, script: Path = ROOT / "run", folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([script, *words], capture_output=True, text=True, encoding="utf-8", cwd=folder)


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_the_help_lists_every_session_and_needs_no_environment(tmp_path, word) -> None:
    shutil.copy(ROOT / "run", tmp_path / "run")
    done = run(word, script=tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")
    nox_file = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    sessions = [part.split("(")[0] for part in nox_file.split("@nox.session\ndef ")[1:]]
    assert len(sessions) == 7
    for session in sessions:
        assert f"\n  {session} " in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(("words", "message"), [([], "say what to run: demo"), (["dmo"], "'dmo' is none of demo")])
def test_anything_else_is_refused_with_the_sessions_there_are(words, message) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"run: {message}") and "./run --help" in done.stderr
    assert done.stderr.count("\n") == 1


def test_nox_starts_in_the_callers_folder_with_all_that_follows_the_sessions(checkout, tmp_path) -> None:
    caller = tmp_path / "caller"
    caller.mkdir()
    words = ["demo", "my file.wav", "-p", "", "--seed", "1"]
    done = run(*words, script=checkout / "run", folder=caller)
    place, called = done.stdout.split("\n")
    assert place == os.path.realpath(caller)
    nox_file = f"<{checkout}/noxfile.py>"
    assert called == f"<-f>{nox_file}<-s><demo><--><my file.wav><-p><><--seed><1>"
    done = run("lint", "types", "--", "-v", script=checkout / "run", folder=caller)
    assert done.stdout.endswith(f"<-f>{nox_file}<-s><lint><types><--><-v>")


class RecordingSession:
    """As much of a nox session as `demo` uses."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        self.invoked_from, self.posargs = str(folder), words
        self.ran: list[str] = []
        self.ran_in = self.said = ""

    def install(self, *_: str) -> None:
        pass

    def chdir(self, folder: str) -> contextlib.chdir[str]:
        return contextlib.chdir(folder)

    def run(self, *words: str) -> None:
        self.ran, self.ran_in = list(words), os.getcwd()

    def log(self, text: str) -> None:
        self.said = text


def demo(folder: Path, *words: str) -> RecordingSession:
    pytest.importorskip("nox")
    import noxfile

    session = RecordingSession(folder, list(words))
    noxfile.demo.func(session)
    return session


@pytest.fixture
def caller(tmp_path, monkeypatch) -> Path:
    """A folder beside a checkout of its own."""
    noxfile = pytest.importorskip("noxfile")
    (tmp_path / "checkout").mkdir()
    (tmp_path / "caller").mkdir()
    monkeypatch.setattr(noxfile, "ROOT", tmp_path / "checkout")
    return tmp_path / "caller"


def test_the_demo_answers_the_callers_file_with_the_callers_options(caller) -> None:
    session = demo(caller, "my.wav", "--seed", "1")
    assert session.ran_in == os.path.realpath(caller)
    outputs = ["--output-audio", "../checkout/demo/answer.wav", "--json", "../checkout/demo/answer.json"]
    outputs += ["--plot", "../checkout/demo/timeline.png"]
    assert session.ran == ["voicechat", "generate", "--audio", "my.wav", *outputs, "--seed", "1"]
    assert session.said.startswith("the answer: ../checkout/demo/answer.wav, its ids: ")


def test_the_demo_answers_the_bundled_question_when_only_options_are_given(caller) -> None:
    session = demo(caller, "--output-audio=mine.wav", "-p", "Be brief.")
    question = str(caller.parent / "checkout" / "voicechat_mlx" / "bundled" / "question.wav")
    assert session.ran[:4] == ["voicechat", "generate", "--audio", question]
    assert session.ran[-3:] == ["--output-audio=mine.wav", "-p", "Be brief."]
    assert "--output-audio" not in session.ran
    assert "the answer:" not in session.said and session.said.startswith("its ids: ")
