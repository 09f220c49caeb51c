"""Many conversations at once: each as if it were alone, and nobody at another's expense."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests import models
from tests.server.client import asking_for, client, heard, pcm16, sound
from tests.server.test_law import ONLY_IDS, assert_same, talk
from voicechat_mlx.offline import generate
from voicechat_mlx.server.limits import Limits
from voicechat_mlx.server.reports import Report, Step
from voicechat_mlx.server.settings import Settings
from voicechat_mlx.server.worker import Worker

FRAME = 1280


@pytest.mark.parametrize("count", [2, 5, 8])
def test_conversations_side_by_side_are_what_each_is_alone(url: str, count: int) -> None:
    speeches = [pcm16(models.speech(0.5 + 0.1 * number, seed=number)) for number in range(count)]
    with ThreadPoolExecutor(count) as pool:
        talks = list(pool.map(lambda pcm: talk(url, pcm, [160 * (len(pcm) % 7 + 1)], ONLY_IDS), speeches))
    for events, pcm in zip(talks, speeches, strict=True):
        expected = generate(models.hasty(), heard(pcm), extra_decoding_seconds=0.0)
        assert_same(events, expected)
        assert np.abs(sound(events) / 32768 - np.clip(expected.audio, -1, 1)).max() < 1e-4


class Clients:
    """Conversations with a worker, without a network: in which order their frames came."""

    def __init__(self) -> None:
        self.worker = Worker(models.hasty, Limits())
        self.order: list[str] = []
        self.frames: dict[str, int] = {}
        self._changed = threading.Condition()

    def listener(self, name: str) -> Callable[[Report], None]:
        def listen(report: Report) -> None:
            assert isinstance(report, Step)
            with self._changed:
                self.order += [name] * report.frames
                self.frames[name] = self.frames.get(name, 0) + report.frames
                self._changed.notify()

        return listen

    def wait(self, name: str, frames: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.frames.get(name, 0) >= frames, timeout=60)


def silence(frames: int) -> np.ndarray:
    """Completes that many frames."""
    return np.zeros(frames * FRAME, np.float32)


def test_who_floods_gets_every_second_frame_and_no_more() -> None:
    clients = Clients()
    flood, calm = (clients.worker.open(Settings(), clients.listener(name)) for name in ("flood", "calm"))
    flood.append(silence(100))
    calm.append(silence(20))
    clients.worker.start()
    clients.wait("calm", 20)
    clients.worker.stop()
    last = len(clients.order) - clients.order[::-1].index("calm")
    assert clients.order[:last].count("flood") <= 21


def test_a_long_prompt_is_heard_between_the_frames_of_others() -> None:
    """Some 500 tokens, two a turn: meanwhile the other conversation has its turns."""
    clients = Clients()
    prompt = "What is the capital of France? " * 60
    talker = clients.worker.open(Settings(instructions=prompt), clients.listener("long"))
    calm = clients.worker.open(Settings(), clients.listener("calm"))
    talker.append(silence(5))
    calm.append(silence(100))
    clients.worker.start()
    clients.wait("calm", 100)
    clients.worker.stop()
    assert clients.order[:100] == ["calm"] * 100


def test_who_stalls_costs_nothing() -> None:
    clients = Clients()
    stalled, paused, calm = (clients.worker.open(Settings(), clients.listener(name)) for name in ("s", "p", "calm"))
    stalled.append(np.zeros(100, np.float32))  # half of what a first frame needs
    paused.append(silence(50))
    paused.pause(True)
    calm.append(silence(10))
    clients.worker.start()
    clients.wait("calm", 10)
    clients.worker.stop()
    assert clients.order == ["calm"] * 10


def test_more_than_the_backlog_is_shed_and_what_was_taken_is_answered(url: str) -> None:
    with client(url, asking_for("frames")) as found:
        for _ in range(80):  # a second each, within a fraction of one
            found.append(bytes(2 * 16000))
        events = found.until("error")
        assert events[-1]["error"]["code"] == "backlog_full"
        waiting = [event for event in events if event["type"] == "voicechat.backlog"]
        assert waiting and all(2 < event["seconds"] <= event["limit_seconds"] == 60 for event in waiting)
        found.send("input_audio_buffer.clear")
        dropped = found.until("input_audio_buffer.cleared")[-1]["dropped_seconds"]
        assert 0 < dropped <= 60
        last = found.finish()[-1]
    assert last["reason"] == "finished"
    assert last["input_seconds"] + dropped <= 80
