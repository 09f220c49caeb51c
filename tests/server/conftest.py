"""One server for most tests: the model of two codebooks, which answers a frame in a few milliseconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import models
from voicechat_mlx.server.limits import Limits
from voicechat_mlx.server.running import running
from voicechat_mlx.server.service import Service
from voicechat_mlx.session import Session

PLACES = 10


def service(**limits: float) -> Service:
    """With everybody's model and these limits."""
    return Service(load=models.hasty, model_name="hasty", limits=Limits(**{"max_sessions": PLACES, **limits}))


@pytest.fixture(scope="session")
def shared() -> Iterator[tuple[Service, str]]:
    """A service and its URL. Tests may use it in any way that leaves it serving."""
    Session(models.hasty())  # derives what the model keeps, so that no test measures it
    made = service()
    with running(made) as url:
        yield made, url


@pytest.fixture
def url(shared: tuple[Service, str]) -> str:
    return shared[1]
