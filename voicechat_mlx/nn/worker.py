"""MLX's worker threads on a Linux CPU, kept from interrupting the threads that feed them.

Each thread that evaluates gets a worker of MLX's, which sleeps whenever it has nothing to do. Linux lets a thread that
wakes interrupt the one on its core, so that feeding it small operations costs two switches for each, a thousand a
frame. A batch thread (SCHED_BATCH) takes an idle core at once, too, but on a busy one it lets the work pile up.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

import mlx.core as mx

_started = threading.local()


def start_worker() -> None:
    """Start the calling thread's worker as a batch thread. Nothing on a GPU, elsewhere, or where there is one already.

    Threads inherit how they are scheduled: the caller is a batch thread while MLX starts the worker, then as before.
    """
    on_linux_cpu = sys.platform == "linux" and mx.default_device().type == mx.DeviceType.cpu
    if not on_linux_cpu or getattr(_started, "here", False) or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    _started.here = True
    with suppress(OSError):  # a sandbox may forbid it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        try:
            mx.eval(mx.zeros(1) + 1)
        finally:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
