"""Every check and the demo, each in an environment of its own: `nox -s SESSION`, or `./run SESSION` without nox."""

from __future__ import annotations

from pathlib import Path

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "imports", "types", "tests"]

ROOT = Path(__file__).parent
PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")


def install(session: nox.Session, group: str) -> None:
    """The package, editable, with one dependency group of pyproject.toml."""
    session.install("-e", ".", *nox.project.dependency_groups(PROJECT, group))


@nox.session
def demo(session: nox.Session) -> None:
    """Answers the bundled question, or the sound file given behind `--`, and shows where the answer lies."""
    session.install("-e", ".[plot]")
    question = session.posargs[0] if session.posargs else "voicechat_mlx/bundled/question.wav"
    answer = ROOT / "demo"
    answer.mkdir(exist_ok=True)
    outputs = ["--output-audio", "demo/answer.wav", "--json", "demo/answer.json", "--plot", "demo/timeline.png"]
    session.run("voicechat", "generate", "--audio", question, *outputs)
    session.log("the answer: demo/answer.wav, its ids: demo/answer.json, the timeline as a picture: demo/timeline.png")


@nox.session
def tests(session: nox.Session) -> None:
    """Unit tests, properties and parity with the PyTorch twin; pytest's options go behind `--`."""
    install(session, "tests")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def parity(session: nox.Session) -> None:
    """MLX against the PyTorch twin, layer by layer: one table, also written into build/parity/."""
    install(session, "tests")
    session.run("python", "-m", "tests.parity.report", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Style and format."""
    session.install(*nox.project.dependency_groups(PROJECT, "lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Static types, strictly."""
    install(session, "types")
    session.run("mypy", *session.posargs)


@nox.session
def imports(session: nox.Session) -> None:
    """The direction of imports."""
    install(session, "imports")
    session.run("lint-imports")


@nox.session
def bench(session: nox.Session) -> None:
    """Milliseconds per 80 ms frame, stage by stage."""
    install(session, "bench")
    session.run("python", "-m", "pytest", "tests/bench", *session.posargs)
