"""What the talker is taught: rows of text ids with the codes that belong to them.

A row is the timeline from its position 1 on: silence, an answer, silence, another answer …; some answers are cut
short by an early EOS, as an interruption does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reference.training.timelines import SOUND_DELAY, Answer, Planner
from reference.training.vocabularies import BOS, EOS, PAD

SILENT_WEIGHT = 0.1


@dataclass
class TalkerRows:
    """N rows of T positions on the device."""

    text: Tensor
    """(N, T) ids."""
    codes: Tensor
    """(N, T, Q) the codes to be said."""
    weight: Tensor
    """(N, T): 1 on speech, less on silence."""

    def take(self, index: Tensor) -> TalkerRows:
        """Some of the rows."""
        return TalkerRows(self.text[index], self.codes[index], self.weight[index])

    def __len__(self) -> int:
        return len(self.text)


def read_codes(work: Path) -> dict[str, NDArray[np.int16]]:
    """WORK/codec → sentence → its codes (frames, Q)."""
    codes = np.load(work / "codec" / "codes.npy")
    records = json.loads((work / "codec" / "codes.json").read_text())
    ends = np.cumsum([record["frames"] for record in records])
    return {record["text"]: codes[end - record["frames"] : end] for record, end in zip(records, ends, strict=True)}


class RowWriter:
    """Puts answers on rows."""

    def __init__(self, planner: Planner, codes: dict[str, NDArray[np.int16]], silence: NDArray[np.int64]) -> None:
        self.planner, self.codes, self.silence = planner, codes, silence

    def one_answer(self, texts: Sequence[str], frames: int, lead: int, device: torch.device) -> TalkerRows:
        """Each text on a row of its own, after `lead` positions."""
        rows = self._empty(len(texts), frames)
        for index, text in enumerate(texts):
            self._write(rows, index, lead, self.planner.answer(text), None)
        return self._on_device(rows, device)

    def random_rows(
        self, texts: Sequence[str], count: int, frames: int, random: np.random.Generator, device: torch.device
    ) -> TalkerRows:
        """Random answers one after another."""
        rows = self._empty(count, frames)
        for index in range(count):
            position = int(random.integers(0, 57))
            while position + 6 < frames:
                answer = self.planner.answer(texts[int(random.integers(len(texts)))])
                cut = int(random.integers(5, answer.end)) if random.random() < 0.12 and answer.end > 6 else None
                position += self._write(rows, index, position, answer, cut)
                position += int(random.integers(1, 80 if random.random() < 0.15 else 24))
            if random.random() < 0.1:
                self._delay_tokens(rows[0][index], random)
        return self._on_device(rows, device)

    def _empty(self, count: int, frames: int) -> tuple[NDArray[np.int16], NDArray[np.int16], NDArray[np.float32]]:
        codes = np.broadcast_to(self.silence.astype(np.int16), (count, frames, len(self.silence))).copy()
        return np.full((count, frames), PAD, np.int16), codes, np.full((count, frames), SILENT_WEIGHT, np.float32)

    def _write(
        self,
        rows: tuple[NDArray[np.int16], NDArray[np.int16], NDArray[np.float32]],
        row: int,
        position: int,
        answer: Answer,
        cut: int | None,
    ) -> int:
        """Answer at `position` of a row, EOS after `cut` frames where given → its length."""
        text, codes, weight = rows
        end = answer.end if cut is None else cut
        for frame, index in ((0, BOS), *answer.tokens, (end, EOS)):
            if frame <= end and position + frame < text.shape[1]:
                text[row, position + frame] = index
        sound = np.concatenate([self.codes[sentence] for sentence in answer.sentences])
        first = position + SOUND_DELAY
        length = max(min(len(sound), end - SOUND_DELAY, text.shape[1] - first), 0)
        codes[row, first : first + length] = sound[:length]
        weight[row, first : first + length] = 1.0
        return end + 1

    def _delay_tokens(self, text: NDArray[np.int16], random: np.random.Generator) -> None:
        """Some tokens come a frame late, where the next frame is free: the language model may slip, too."""
        for position in range(len(text) - 2, -1, -1):
            if text[position] not in (PAD, BOS, EOS) and text[position + 1] == PAD and random.random() < 0.2:
                text[position + 1], text[position] = text[position], PAD

    def _on_device(
        self, rows: tuple[NDArray[np.int16], NDArray[np.int16], NDArray[np.float32]], device: torch.device
    ) -> TalkerRows:
        return TalkerRows(*(torch.from_numpy(table).to(device) for table in rows))
