"""Where the held-out recordings lie, and what they hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

HELDOUT = Path(__file__).parents[2] / "fixtures" / "heldout"
"""Made by reference/training/heldout.py: voices, speeds and noise that no part of the model was trained on."""


def recording(file: str) -> NDArray[np.float32]:
    """One of them, at 16 kHz."""
    samples, rate = soundfile.read(HELDOUT / file, dtype="float32")
    assert rate == 16000
    return samples
