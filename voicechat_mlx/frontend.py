"""Samples in, mel rows of whole frames out: one row for the first frame, then one per subsampling factor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from voicechat_mlx.audio.mel import MelStream
from voicechat_mlx.conventions import Conventions
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.perception.subsampling import encoder_frames


class Frontend:
    """Holds back the rows that do not complete a frame yet, and those of frames beyond the limit."""

    def __init__(self, model: VoiceChat, conventions: Conventions, limit: int | None = None) -> None:
        """`limit` is the most frames whose rows are given out."""
        audio = model.config.audio_config
        self._mel = MelStream(model.mel_filterbank, conventions)
        self._factor = audio.encoder.subsampling_factor
        self._keeps_last_row = conventions.keeps_last_mel_frame
        self._limit = limit
        self._rows: NDArray[np.float32] = np.zeros((0, audio.preprocessor.features), np.float32)
        self._rows_seen = 0

    @property
    def samples(self) -> int:
        """Samples heard so far."""
        return self._mel.samples

    def push(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Samples [n] → the rows [T, features] of the frames that they complete."""
        self._take(self._mel.push(samples))
        frames = (self._rows_seen - 1) // self._factor + 1
        return self._rows_of(frames if self._limit is None else min(frames, self._limit))

    def finish(self) -> tuple[NDArray[np.float32], bool, bool]:
        """No more samples → the rows that are left, whether they end the stream, whether a padding frame follows.

        They do not end it when there would be more frames than the limit. The padding frame is the one that would have
        been completed by the mel row which a convention drops.
        """
        self._take(self._mel.finish())
        frames = encoder_frames(self._rows_seen)
        if self._limit is not None and frames > self._limit:
            return self._rows_of(self._limit), False, False
        if self._keeps_last_row:
            return self._rows, True, False
        return self._rows[:-1], True, frames > encoder_frames(self._rows_seen - 1)

    def _take(self, rows: NDArray[np.float32]) -> None:
        self._rows = np.concatenate([self._rows, rows])
        self._rows_seen += len(rows)

    def _rows_of(self, frames: int) -> NDArray[np.float32]:
        """The rows of the first `frames` frames, without those that were given out before."""
        given = self._rows_seen - len(self._rows)
        count = max(0, (frames - 1) * self._factor + 1 - given) if frames else 0
        rows, self._rows = self._rows[:count], self._rows[count:]
        return rows
