"""What a frame costs the host on CUDA, counted without a GPU."""

from __future__ import annotations

from tests.bench.launches import counted

MOST = 370
"""Launches of a frame at the published number of layers: 358, and a few for what may yet be needed."""


def test_a_frame_needs_no_more_launches_than_it_did() -> None:
    assert sum(own + other for own, other in counted().values()) <= MOST
