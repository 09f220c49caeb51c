"""The bundled model, and what it makes of the held-out recordings in fixtures/heldout: each is played once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

import voicechat_mlx
from reference.training.answerers import MlxAnswerer, Reply
from reference.training.evaluate import judge, played
from reference.training.heldout import Case, read_cases
from tests.checkpoint.heldout import HELDOUT
from voicechat_mlx.checkpoint import BUNDLED
from voicechat_mlx.cli.__main__ import main


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of all waits until every recording was played: a minute on two idle cores."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def model() -> voicechat_mlx.VoiceChat:
    """What `load` gives when no model is named."""
    return voicechat_mlx.load()


@pytest.fixture(scope="session")
def answerer() -> MlxAnswerer:
    """The same, as the judges of reference/training want it."""
    return MlxAnswerer(BUNDLED)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))


@pytest.fixture(scope="session")
def cases() -> list[Case]:
    """All but the tools, which need someone to answer their calls."""
    return [case for case in read_cases(HELDOUT) if case.kind != "tools"]


@pytest.fixture(scope="session")
def replies(answerer: MlxAnswerer, cases: list[Case]) -> list[Reply]:
    """One to each case; seed 0, 3 s of silence behind each recording."""
    return played(answerer, HELDOUT, cases)


@pytest.fixture(scope="session")
def figures(cases: list[Case], replies: list[Reply], tokenizer: Tokenizer) -> dict[str, dict[str, float]]:
    """Kind of case → figures in percent."""
    return judge(cases, replies, tokenizer)


@pytest.fixture(scope="session")
def four_bit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model with its language path in 4 bits, made by our own `convert`."""
    folder = tmp_path_factory.mktemp("converted") / "voicechat-nano-4bit"
    assert main(["convert", str(BUNDLED), str(folder), "--bits", "4"]) == 0
    return folder
