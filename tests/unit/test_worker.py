"""MLX's worker thread does not interrupt the thread that feeds it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux schedules threads one by one")

POLICIES = """
import os, threading
import mlx.core as mx
from voicechat_mlx.nn.worker import start_worker
mx.set_default_device(mx.cpu)

def policies():
    return sorted(os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task"))

before = policies()
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
start_worker()
start_worker()
mx.eval(mx.ones(3) + 1)
after = policies()
print(after.count(os.SCHED_BATCH) - before.count(os.SCHED_BATCH), len(after) - len(before), os.sched_getscheduler(0))
"""
    assert run(program) == ["1", "1", str(os.SCHED_OTHER)]


def test_every_thread_has_a_worker_of_its_own() -> None:
    program = """
for _ in range(2):
    thread = threading.Thread(target=start_worker)
    thread.start()
    thread.join()
print(policies().count(os.SCHED_BATCH) - before.count(os.SCHED_BATCH))
"""
    assert run(program) == ["2"]


def test_a_machine_that_forbids_it_computes_as_before() -> None:
    program = """
def forbidden(*arguments):
    raise PermissionError
os.sched_setscheduler = forbidden
start_worker()
print((mx.ones(1) + 1).item(), policies().count(os.SCHED_BATCH) - before.count(os.SCHED_BATCH))
"""
    assert run(program) == ["2.0", "0"]
