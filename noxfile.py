"""Every check and the demo, each in an environment of its own: `nox -s SESSION`, or `./run SESSION` without nox."""

from __future__ import annotations

import os
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
    """Answers the bundled question, or a sound file given first behind `--`; `voicechat generate` gets what follows."""
    session.install("-e", ".[plot]")
    words = list(session.posargs)
    question = words.pop(0) if words and not words[0].startswith("-") else ROOT / "voicechat_mlx/bundled/question.wav"
    folder = ROOT / "demo"
    folder.mkdir(exist_ok=True)
    chosen = {word.split("=")[0] for word in words}
    outputs = [
        ("--output-audio", "answer.wav", "the answer"),
        ("--json", "answer.json", "its ids"),
        ("--plot", "timeline.png", "the timeline as a picture"),
    ]
    places = {
        option: (os.path.relpath(folder / name, session.invoked_from), about)
        for option, name, about in outputs
        if option not in chosen
    }
    options = [word for option, (place, _) in places.items() for word in (option, place)]
    with session.chdir(session.invoked_from):  # names on the command line are the caller's
        session.run("voicechat", "generate", "--audio", str(question), *options, *words)
    if places and not {"-h", "--help"} & chosen:
        session.log(", ".join(f"{about}: {place}" for place, about in places.values()))


@nox.session
def tests(session: nox.Session) -> None:
    """Unit tests, properties and parity with the PyTorch twin; pytest's options go behind `--`."""
    install(session, "tests")
    side_by_side = ["--numprocesses=auto", "--maxprocesses=4", "--dist=loadfile"]
    one_thread = {"OMP_NUM_THREADS": "1"}  # for each of them
    session.run("python", "-m", "pytest", *side_by_side, *session.posargs, env=one_thread)


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
