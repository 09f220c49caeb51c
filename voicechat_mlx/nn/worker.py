"""MLX's worker threads on a Linux CPU, kept from interrupting the threads that feed them.

Each thread that evaluates gets a worker of MLX's, which sleeps whenever it has nothing to do. Linux lets a thread that
wakes interrupt the one on its core, so that feeding it small operations costs two switches for each, a thousand a
frame. A batch thread (SCHED_BATCH) takes an idle core at once, too, but on a busy one it lets the work pile up. Where
strangers keep the cores busy it would wait for them as well, so there a worker stays an ordinary thread.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import mlx.core as mx

BUSY = 0.25
"""Share of the machine's time that strangers take, from which on it counts as busy."""
SHORTEST = 0.1
"""Seconds over which that share is taken at least."""
STAT = Path("/proc/stat")
_local = threading.local()


def settle_worker() -> None:
    """Make the calling thread's worker a batch thread, or an ordinary one on a busy machine. On a Linux CPU only.

    Call where conversations begin. The thread's first call starts the worker, to learn which it is.
    """
    on_linux_cpu = sys.platform == "linux" and mx.default_device().type == mx.DeviceType.cpu
    if not on_linux_cpu or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    if not hasattr(_local, "worker"):
        _local.worker = _started()
    strangers = _times.strangers()
    if _local.worker is not None and strangers is not None:
        with suppress(OSError):  # a sandbox may forbid it
            policy = os.SCHED_OTHER if strangers > BUSY else os.SCHED_BATCH
            os.sched_setscheduler(_local.worker, policy, os.sched_param(0))


class _Times:
    """What the machine's processors did since this was last asked."""

    def __init__(self) -> None:
        self._before = self._now()

    def strangers(self) -> float | None:
        """The share of all processors that other programs took; None so soon after the last time, or where unknown."""
        before, now = self._before, self._now()
        if before is None or now is None or now[1] - before[1] < SHORTEST * len(os.sched_getaffinity(0)):
            return None
        self._before = now
        busy, total, own = (later - earlier for earlier, later in zip(before, now, strict=True))
        return max(0.0, busy - own) / total

    def _now(self) -> tuple[float, float, float] | None:
        """Seconds of all processors at work, at work or not, and at work for this process."""
        try:
            ticks = [int(field) for field in STAT.read_text(encoding="ascii").splitlines()[0].split()[1:9]]
        except (OSError, ValueError, IndexError):
            return None
        total, idle = sum(ticks), ticks[3] + ticks[4]
        second = os.sysconf("SC_CLK_TCK")
        return (total - idle) / second, total / second, time.process_time()


def _started() -> int | None:
    """The worker's thread id; None where it ran before, or cannot be told from others."""
    before = _threads()
    mx.eval(mx.zeros(1) + 1)
    new = _threads() - before
    return new.pop() if len(new) == 1 else None


def _threads() -> set[int]:
    with suppress(OSError):
        return {int(thread) for thread in os.listdir("/proc/self/task")}
    return set()


_times = _Times()
