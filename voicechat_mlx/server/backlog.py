"""Samples that wait to be heard: four bytes each, however small the pieces were in which they came."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
_BYTES = 4


class Backlog:
    """First in, first out. Not for threads: its owner locks."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def __len__(self) -> int:
        """Samples."""
        return len(self._bytes) // _BYTES

    def push(self, samples: Float32) -> None:
        """float32 [n], to be heard last."""
        self._bytes += samples.tobytes()

    def take(self, count: int) -> Float32:
        """The first `count` samples, or all when there are fewer."""
        taken = np.frombuffer(bytes(self._bytes[: count * _BYTES]), np.float32)
        del self._bytes[: count * _BYTES]
        return taken

    def clear(self) -> int:
        """Forget all. How many there were."""
        count = len(self)
        self._bytes.clear()
        return count
