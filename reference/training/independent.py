"""A recogniser that knows nothing of the model: pocketsphinx, its English model, and a grammar of all answers."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.training.content import transcript


class AnswerPicker:
    """Picks, of all answers whose words it knows, the one that it hears."""

    def __init__(self, answers: Sequence[str]) -> None:
        """Raises ModuleNotFoundError where pocketsphinx is not installed."""
        from pocketsphinx import Decoder

        self._decoder: Any = Decoder(loglevel="FATAL", samprate=16000)
        known = [text for text in dict.fromkeys(map(transcript, answers)) if self._knows(text)]
        self.answers = frozenset(known)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "answers.jsgf"
            path.write_text(f"#JSGF V1.0;\ngrammar answers;\npublic <answer> = {' | '.join(known)};\n")
            self._decoder.add_jsgf_file("answers", str(path))
        self._decoder.activate_search("answers")

    def _knows(self, text: str) -> bool:
        return all(self._decoder.lookup_word(word) is not None for word in text.split())

    def pick(self, wave: NDArray[np.float32]) -> str:
        """Samples at 16 kHz → the answer heard, or ""."""
        padded = np.pad(wave * (0.5 / max(float(np.abs(wave).max()), 1e-6)), (3200, 4800))
        noisy = padded + np.random.default_rng(0).normal(size=len(padded)) * 1e-3
        self._decoder.start_utt()
        self._decoder.process_raw((np.clip(noisy, -1, 1) * 32767).astype(np.int16).tobytes(), full_utt=True)
        self._decoder.end_utt()
        found = self._decoder.hyp()
        return "" if found is None else str(found.hypstr)
