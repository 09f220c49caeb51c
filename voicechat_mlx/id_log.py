"""The ids and codes of a session so far, four bytes each: 132 bytes a frame."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from voicechat_mlx.pipeline import Ids


class IdLog:
    """Grows by whole blocks and gives copies."""

    def __init__(self, levels: int) -> None:
        self._levels = levels
        self._text, self._function, self._codes = array("i"), array("i"), array("i")

    def append(self, ids: Ids) -> None:
        """The ids of F more frames."""
        self._text.frombytes(ids.text.tobytes())
        self._function.frombytes(ids.function.tobytes())
        self._codes.frombytes(ids.codes.tobytes())

    @property
    def text(self) -> NDArray[np.int32]:
        """[frames]."""
        return np.array(self._text, np.int32)

    @property
    def function(self) -> NDArray[np.int32]:
        """[frames]."""
        return np.array(self._function, np.int32)

    @property
    def codes(self) -> NDArray[np.int32]:
        """[frames, Q]."""
        return np.array(self._codes, np.int32).reshape(-1, self._levels)
