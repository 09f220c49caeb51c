"""A talk from file to file: no sound device, as fast as it goes."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from voicechat_mlx.audio.wav import sample_count
from voicechat_mlx.cli.talk_display import Display
from voicechat_mlx.cli.talk_partners import Partner
from voicechat_mlx.events import Audio, Event


class Answer:
    """Collects what is said and shows it."""

    def __init__(self, display: Display) -> None:
        self.display = display
        self._pieces: list[NDArray[np.float32]] = []

    def take(self, events: list[Event]) -> list[NDArray[np.float32]]:
        """Show them; the sound among them."""
        pieces = [event.samples for event in events if isinstance(event, Audio)]
        self._pieces += pieces
        self.display.show(events)
        return pieces

    def take_all(self, events: Iterable[Event]) -> list[NDArray[np.float32]]:
        """As they come, one by one."""
        return [piece for event in events for piece in self.take([event])]

    @property
    def samples(self) -> NDArray[np.float32]:
        """All so far."""
        return np.concatenate([np.zeros(0, np.float32), *self._pieces])


def say_file(
    partner: Partner, question: NDArray[np.float32], extra_seconds: float, answer: Answer, stopping: threading.Event
) -> None:
    """The question, then silence; less of both when it is stopped."""
    samples = np.concatenate([question, np.zeros(sample_count(extra_seconds, partner.input_rate), np.float32)])
    for begin in range(0, len(samples), partner.block):
        if stopping.is_set():
            break
        answer.take(partner.push(samples[begin : begin + partner.block]))
    answer.take_all(partner.finish())
