"""How Hypothesis draws here: the same examples on every machine, without hurry and without files."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def drawn(examples: int) -> settings:
    """A decorator for tests with drawn arguments."""
    return settings(
        derandomize=True,
        deadline=None,
        database=None,
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
