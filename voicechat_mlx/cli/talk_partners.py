"""Whom one can talk to: something that takes samples and gives events. The other one is in talk_remote.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from voicechat_mlx.events import Event
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.session import BLOCK_FRAMES, Session


class Partner(Protocol):
    """One conversation."""

    input_rate: int
    output_rate: int
    block: int
    """Samples that are best given at once when all are there already."""

    def push(self, samples: NDArray[np.float32]) -> list[Event]:
        """float32 [n] at the input rate → what there is to tell by now. `Done` when the talk is over."""
        ...

    def finish(self) -> Iterable[Event]:
        """What is left; ends with `Done`."""
        ...


class Local:
    """A session in this process. Blocks of the size that `generate` takes, so that the answer is the same."""

    def __init__(self, model: VoiceChat, *, prompt: str | None, seed: int) -> None:
        self._session = Session(model, prompt, seed, frame_timing=True)
        self.input_rate = model.config.input_sample_rate
        self.output_rate = model.config.output_sample_rate
        self.block = BLOCK_FRAMES * model.config.input_samples_per_frame

    def push(self, samples: NDArray[np.float32]) -> list[Event]:
        """Computes the frames that these samples complete."""
        return self._session.push(samples)

    def finish(self) -> Iterable[Event]:
        """Computes the rest."""
        return self._session.finish()
