"""What a frame costs the host on CUDA, counted without a GPU."""

from __future__ import annotations

from tests.bench.launches import counted

MOST, MOST_IN_CHAINS = 770, 370
"""Launches of a frame at the published number of layers: 759 and 364, and a few for what may yet be needed."""


def launches(switch: str) -> int:
    return sum(own + other for own, other in counted(switch).values())


def test_a_frame_needs_no_more_launches_than_it_did() -> None:
    assert launches("") <= MOST


def test_chains_halve_them() -> None:
    assert launches("1") <= MOST_IN_CHAINS
