"""One conversation between the two sides: the network side queues, the worker takes.

Every method that is public may be called from any thread; what begins with `worker_` is the worker's own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import numpy as np

from voicechat_mlx.server.backlog import Backlog, Float32
from voicechat_mlx.server.limits import Limits
from voicechat_mlx.server.protocol import CancelResponse, ToolOutput
from voicechat_mlx.server.reports import Report
from voicechat_mlx.server.resampling import MODEL_INPUT_RATE
from voicechat_mlx.server.settings import Settings
from voicechat_mlx.server.watch import Answer

Control = CancelResponse | ToolOutput
FRAME_SECONDS = 0.08
MOST_CONTROLS = 64
"""That wait for the worker, which has time for them after every frame."""


def frames_of(seconds: float) -> int:
    """Seconds → whole frames, rounded, at least one."""
    return max(1, round(seconds / FRAME_SECONDS))


class Talk:
    """Queues and wishes of one client."""

    def __init__(
        self, settings: Settings, limits: Limits, wake: threading.Condition, listener: Callable[[Report], None]
    ) -> None:
        """`wake` is the worker's: it guards all that stands here. `listener` is called by the worker's thread."""
        self.settings, self.listener = settings, listener
        self._limits, self._wake = limits, wake
        self._backlog = Backlog()
        self._controls: deque[Control] = deque()
        self._answer: Answer | None = None
        self._finishing = False
        self._paused = False
        self.closed = False
        self.worker_needs = 1
        """Samples that complete the next frame."""

    def append(self, samples: Float32) -> None:
        """float32 at 16 kHz, to be heard in order. Who calls sees to it that not too much waits."""
        with self._wake:
            self._backlog.push(samples)
            self._answer = None
            self._wake.notify()

    def clear(self) -> float:
        """Drop what waits. How many seconds that were."""
        with self._wake:
            return self._backlog.clear() / MODEL_INPUT_RATE

    def ask_for_answer(self) -> bool:
        """Go on with silence after what waits; False when that is so already."""
        with self._wake:
            if self._answer is not None:
                return False
            limits = self._limits
            self._answer = Answer(
                quiet_frames=frames_of(limits.quiet_seconds), most_frames=frames_of(limits.answer_seconds)
            )
            self._wake.notify()
            return True

    def control(self, request: Control) -> bool:
        """Do this before any more audio is heard; False when too many such requests wait already."""
        with self._wake:
            if len(self._controls) >= MOST_CONTROLS:
                return False
            self._controls.append(request)
            if isinstance(request, CancelResponse):
                self._answer = None
            self._wake.notify()
            return True

    def finish(self, tail: Float32 | None, extra_seconds: float) -> None:
        """Hear what waits, the tail, and so much silence; then give what is left."""
        with self._wake:
            if tail is not None:
                self._backlog.push(tail)
            self._backlog.push(np.zeros(round(extra_seconds * MODEL_INPUT_RATE), np.float32))
            self._answer, self._finishing = None, True
            self._wake.notify()

    def pause(self, paused: bool) -> None:
        """Whether the client must read first before more is computed for it."""
        with self._wake:
            self._paused = paused
            self._wake.notify()

    def close(self) -> None:
        """The client is gone."""
        with self._wake:
            self.closed = True
            self._wake.notify()

    @property
    def backlog_seconds(self) -> float:
        """Audio that waits."""
        return len(self._backlog) / MODEL_INPUT_RATE

    @property
    def is_answering(self) -> bool:
        """Whether `response.create` is at work."""
        return self._answer is not None

    @property
    def is_busy(self) -> bool:
        """Whether the worker has something to do for it, now or when the client has read."""
        return bool(len(self._backlog) >= self.worker_needs or self._answer or self._finishing or self._controls)

    def worker_control(self) -> Control | None:
        """What is to be done before any audio. The caller holds the lock."""
        return self._controls.popleft() if self._controls else None

    @property
    def worker_has_frame(self) -> bool:
        """Whether the next frame can be computed. The caller holds the lock."""
        enough = len(self._backlog) >= self.worker_needs
        return not self._paused and bool(enough or self._answer or self._finishing)

    def worker_take(self) -> tuple[Float32, Answer | None, bool]:
        """The samples of the next frame, whose silence they hold, and whether they are the last."""
        with self._wake:
            wanted = self.worker_needs
            samples = self._backlog.take(wanted)
            if len(samples) == wanted:
                return samples, None, False
            if self._finishing:
                return samples, None, True
            silence = np.zeros(wanted - len(samples), np.float32)
            return np.concatenate([samples, silence]), self._answer, False

    def worker_answered(self, answer: Answer) -> None:
        """That silence has been enough."""
        with self._wake:
            if self._answer is answer:
                self._answer = None
