"""Run every step, in order, on as many GPUs as there are; the same command goes on where it was stopped.

Steps that do not need each other run side by side: talker, decoder and duplex, for instance; the codec has its GPU to
itself. Each writes its output to WORK/logs. A step that fails on a GPU is tried again without torch.compile, then
without CUDA graphs. Every half minute the last line of each log is shown. `--seconds` stops everything in time,
states saved. `--pack` copies what matters into a few small files after every step, `--unpack` puts them back.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from reference.training.loop import UNFINISHED
from reference.training.packing import pack, unpack

FALLBACKS: tuple[tuple[str, ...], ...] = ((), ("--no-compile",), ("--no-compile", "--no-graphs"))
MARGIN, LAST = 30.0, 14.0
"""Seconds before the end at which training steps save and stop; at which whatever still runs is ended."""
SHOW_SECONDS = 30.0
LONGEST_LINE = 1500


@dataclass(frozen=True)
class Step:
    """A command, what must be done before it, and the file that says that it is done."""

    name: str
    needs: tuple[str, ...]
    done: str
    trains: bool = True
    alone: bool = False
    """Whether it needs all of a GPU: what shares one with it makes it several times slower."""


STEPS = (
    Step("data", (), "data/clips.json", trains=False),
    Step("codec", ("data",), "codec/figures.json", alone=True),
    Step("perception", ("data",), "perception/figures.json"),
    Step("talker", ("codec",), "talker/figures.json"),
    Step("duplex", ("perception",), "duplex/figures.json"),
    Step("decoder", ("codec", "perception"), "decoder/figures.json"),
    Step("export", ("talker", "duplex", "decoder"), "checkpoint/README.md", trains=False),
)


@dataclass
class Running:
    """A step at work."""

    step: Step
    device: str
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    began: float = field(default_factory=time.monotonic)


class Schedule:
    """Starts what can start, watches what runs."""

    def __init__(self, arguments: argparse.Namespace, devices: Sequence[str], began: float) -> None:
        self.arguments, self.work = arguments, arguments.work
        self.free = [device for device in devices for _ in range(arguments.jobs)]
        self.deadline = began + arguments.seconds if arguments.seconds else None
        self.steps = [step for step in STEPS if not arguments.only or step.name in arguments.only]
        self.tries: dict[str, int] = {step.name: 0 for step in self.steps}
        self.shown = time.time()
        self.left: set[str] = set()
        """Steps that failed, or that the deadline stopped."""
        self.running: list[Running] = []
        (self.work / "logs").mkdir(parents=True, exist_ok=True)

    def run(self) -> bool:
        """→ whether everything is done."""
        while True:
            self._start_what_can()
            if not self.running:
                return all(self._is_done(step) for step in self.steps)
            time.sleep(0.2)
            self._show_progress()
            if self.deadline is not None and time.time() > self.deadline - LAST:
                self._end_what_runs()
            for running in list(self.running):
                if running.process.poll() is not None:
                    self._finish(running)

    def _show_progress(self) -> None:
        if time.time() - self.shown < SHOW_SECONDS:
            return
        self.shown = time.time()
        for running in self.running:
            print(_tail(self._log(running.step.name), 1), flush=True)

    def _log(self, name: str) -> Path:
        path: Path = self.work / "logs" / f"{name}.log"
        return path

    def _end_what_runs(self) -> None:
        for running in self.running:
            self.left.add(running.step.name)
            print(f"run_all: no time is left for {running.step.name}", flush=True)
            running.process.terminate()
        for running in self.running:
            try:
                running.process.wait(5.0)
            except subprocess.TimeoutExpired:
                running.process.kill()
                running.process.wait()

    def _start_what_can(self) -> None:
        busy = {running.step.name for running in self.running}
        for step in self.steps:
            ready = all((self.work / done).is_file() for done in self._needed(step))
            waiting = step.name not in busy | self.left and not self._is_done(step)
            device = self._device_for(step)
            if ready and waiting and device is not None and not self._too_late():
                self._start(step, device)

    def _device_for(self, step: Step) -> str | None:
        """The first device with enough room."""
        return next((device for device in self.free if self.free.count(device) >= self._room(step)), None)

    def _room(self, step: Step) -> int:
        """How many of a device's places a step takes."""
        places: int = self.arguments.jobs
        return places if step.alone else 1

    def _needed(self, step: Step) -> list[str]:
        return [other.done for other in STEPS if other.name in step.needs]

    def _is_done(self, step: Step) -> bool:
        return (self.work / step.done).is_file()

    def _too_late(self) -> bool:
        return self.deadline is not None and time.time() > self.deadline - MARGIN

    def _start(self, step: Step, device: str) -> None:
        command = [sys.executable, "-m", f"reference.training.{step.name}", "--work", str(self.work)]
        command += ["--settings", self.arguments.settings, "--seed", str(self.arguments.seed)]
        environment = dict(os.environ, PYTHONUNBUFFERED="1")
        if step.trains:
            command += ["--time-scale", str(self.arguments.time_scale), *FALLBACKS[self.tries[step.name]]]
            if self.deadline is not None:
                command += ["--deadline", str(self.deadline - MARGIN)]
                command += ["--final"] if self.arguments.final else []
            if device == "cpu":
                command += ["--device", "cpu"]
            else:
                environment["CUDA_VISIBLE_DEVICES"] = device
        for _ in range(self._room(step)):
            self.free.remove(device)
        log = self._log(step.name).open("ab")
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        print(f"run_all: {step.name} starts on {device}", flush=True)
        self.running.append(Running(step, device, process, log))

    def _finish(self, running: Running) -> None:
        self.running.remove(running)
        self.free += [running.device] * self._room(running.step)
        running.log.close()
        name, code = running.step.name, running.process.returncode
        print(f"run_all: {name} ends with {code} after {time.monotonic() - running.began:.0f} s", flush=True)
        print(_tail(self._log(name), 3 if code in (0, UNFINISHED) else 12), flush=True)
        if self.arguments.pack:
            pack(self.work, self.arguments.pack)
        if code == 0:
            return
        self.tries[name] += 1
        if code == UNFINISHED or not running.step.trains or self.tries[name] >= len(FALLBACKS):
            self.left.add(name)


def _tail(path: Path, lines: int) -> str:
    """The last lines of a log, each cut to a readable length."""
    return "\n".join(f"    {line[:LONGEST_LINE]}" for line in path.read_text(errors="replace").splitlines()[-lines:])


def gpus() -> list[str]:
    """Indices of the GPUs, or ["cpu"]."""
    import torch

    return [str(index) for index in range(torch.cuda.device_count())] or ["cpu"]


def main() -> None:
    """The command."""
    began = time.time()
    parser = argparse.ArgumentParser(
        prog="python -m reference.training.run_all",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--work", type=Path, required=True, help="folder of the whole run")
    parser.add_argument("--settings", choices=("full", "smoke", "trial"), default="full")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0, help="stop in time for this; 0: never")
    parser.add_argument("--final", action="store_true", help="finish within --seconds: no call follows this one")
    parser.add_argument("--time-scale", type=float, default=1.0, help="factor on every step's time limit")
    parser.add_argument(
        "--jobs", type=int, default=0, help="steps at a time on one GPU; 0: two on a single GPU, else one"
    )
    parser.add_argument("--only", nargs="*", choices=[step.name for step in STEPS], help="only these steps")
    parser.add_argument(
        "--pack", type=Path, help="copy weights, figures, curves and samples into this folder at the end"
    )
    parser.add_argument("--unpack", type=Path, help="begin with what an earlier --pack wrote")
    arguments = parser.parse_args()
    devices = gpus()
    if not arguments.jobs:
        arguments.jobs = 2 if len(devices) == 1 and devices != ["cpu"] else 1
    if arguments.unpack:
        unpack(arguments.unpack, arguments.work)
    print(f"run_all: on {', '.join(devices)}, {arguments.jobs} at a time on each", flush=True)
    complete = Schedule(arguments, devices, began).run()
    if arguments.pack:
        pack(arguments.work, arguments.pack)
    print(f"run_all: {'everything is done' if complete else 'not everything is done'}", flush=True)
    raise SystemExit(0 if complete else UNFINISHED)


if __name__ == "__main__":
    main()
