"""MLX's worker thread does not interrupt the thread that feeds it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from voicechat_mlx.nn import worker


def may_schedule() -> bool:
    """Linux schedules threads one by one, and a sandbox may forbid to say how."""
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except (AttributeError, OSError):
        return False
    return True


pytestmark = pytest.mark.skipif(not may_schedule(), reason="threads cannot be made batch threads here")

POLICIES = """
import os, threading
import mlx.core as mx
from voicechat_mlx.nn import worker
from voicechat_mlx.nn.worker import settle_worker
mx.set_default_device(mx.cpu)

def batch_threads():
    return [os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")].count(os.SCHED_BATCH)

def load(share):
    worker._times.strangers = lambda: share

load(0)
"""


def run(program: str) -> list[str]:
    """What it prints, in a process whose threads are all its own."""
    command = [sys.executable, "-c", POLICIES + program]
    environment = os.environ | {"VOICECHAT_NO_OPENBLAS": "1"}
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_the_worker_is_a_batch_thread_and_its_feeder_stays_what_it_was() -> None:
    program = """
settle_worker()
threads = len(os.listdir("/proc/self/task"))
settle_worker()
mx.eval(mx.ones(3) + 1)
print(batch_threads(), len(os.listdir("/proc/self/task")) - threads, os.sched_getscheduler(0))
"""
    assert run(program) == ["1", "0", str(os.SCHED_OTHER)]


def test_on_a_busy_machine_it_is_an_ordinary_one_again() -> None:
    program = """
settle_worker()
load(1)
settle_worker()
print(batch_threads())
load(0)
settle_worker()
print(batch_threads())
"""
    assert run(program) == ["0", "1"]


def test_strangers_are_those_at_work_but_not_for_this_process(tmp_path, monkeypatch) -> None:
    """Of 8 s of all processors 5 were at work, 1 of them for this process."""
    monkeypatch.setattr(worker, "STAT", tmp_path / "stat")
    (tmp_path / "stat").write_text("cpu  100 20 30 4000 50 1 2 3 9 9\ncpu0 1 2\n", encoding="ascii")
    monkeypatch.setattr(worker.time, "process_time", lambda: 2.0)
    monkeypatch.setattr(worker.os, "sysconf", lambda name: 100)
    times = worker._Times()
    assert times.strangers() is None  # no time has passed
    (tmp_path / "stat").write_text("cpu  500 20 130 4250 100 1 2 3 9 9\n", encoding="ascii")
    monkeypatch.setattr(worker.time, "process_time", lambda: 3.0)
    assert times.strangers() == 0.5
    (tmp_path / "stat").unlink()
    assert times.strangers() is None


def test_every_thread_has_a_worker_of_its_own() -> None:
    program = """
for _ in range(2):
    thread = threading.Thread(target=settle_worker)
    thread.start()
    thread.join()
print(batch_threads())
"""
    assert run(program) == ["2"]


def test_a_machine_that_forbids_it_computes_as_before() -> None:
    program = """
def forbidden(*arguments):
    raise PermissionError
os.sched_setscheduler = forbidden
settle_worker()
print((mx.ones(1) + 1).item(), batch_threads())
"""
    assert run(program) == ["2.0", "0"]
