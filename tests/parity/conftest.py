"""Both sides of every tiny checkpoint, made and loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.make_tiny import VARIANTS
from tests.parity.pair import Checkpoints, Pair


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is marked `parity`."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.parity)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="session", params=VARIANTS)
def pair(request: pytest.FixtureRequest, checkpoints: Checkpoints) -> Pair:
    """Each variant in turn."""
    return checkpoints.pair(request.param)


@pytest.fixture(scope="session")
def fp32(checkpoints: Checkpoints) -> Pair:
    """The plain one, for tests that are about shapes or values rather than weights."""
    return checkpoints.pair()
