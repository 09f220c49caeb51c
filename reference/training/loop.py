"""The training loop that every step shares: optimiser, schedule, time limit, CUDA graph, reports, resumable state.

Unusual: a step is a function without arguments that returns its loss. It draws its own batch on the device, so that
on a GPU the whole of it (batch, loss, gradients, update) is captured once as a CUDA graph and then replayed. The
number of steps is cut, early on, to what fits the time limit; so the schedule always ends where it should.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reference.training.curves import plot_curve

Compute = Callable[[], dict[str, Tensor]]
CAPTURE_FAILED, UNFINISHED = 76, 75
"""Exit codes: try again without graphs; the deadline came, run again to go on."""
SAVE_SECONDS = 60.0
EAGER_STEPS = 3
MEASURED_STEPS = 40
REFIT_STEPS = 250
JUDGING_SECONDS = 25.0
"""What a last call keeps, before the deadline, for measuring what was learnt."""


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """How to optimise."""

    steps: int
    """At most."""
    seconds: float
    """Steps are cut so that the loop takes no longer than about this."""
    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.98
    weight_decay: float = 0.01
    clip: float = 1.0
    warmup: int = 100
    report_every: int = 50


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of training with one loss."""

    until: float
    """Progress (0 … 1) at which it ends."""
    computes: tuple[Compute, ...]
    """The loss; where there are several, the steps take turns."""
    begin: Callable[[], None] | None = None
    """Called once, before the phase's first step; not again when the run is resumed within it."""
    every: int = 0
    callback: Callable[[], None] | None = None
    """Called every so many steps, outside the graph."""


class Refit:
    """When to measure the speed again: once the graphs are captured, a little later, then every 250 steps."""

    def __init__(self, ready: int, window: int) -> None:
        self._ready, self._window = ready, window
        self._last: tuple[int, float] | None = None

    def is_due(self, done: int) -> bool:
        """Whether to measure after so many steps of the phase."""
        return done in (self._ready, self._ready + self._window) or done % REFIT_STEPS == 0

    def seconds_per_step(self, done: int, seconds: float) -> float | None:
        """Since the last measurement, callbacks included; None at the first."""
        last, self._last = self._last, (done, seconds)
        return None if last is None else (seconds - last[1]) / (done - last[0])


class Trainer:
    """Runs phases one after another. `kept` holds every tensor that a resumed run needs; `folder` the state."""

    def __init__(
        self,
        name: str,
        folder: Path,
        kept: nn.Module,
        parameters: Iterable[nn.Parameter],
        settings: LoopSettings,
        arguments: argparse.Namespace,
        save_weights: Callable[[], None],
    ) -> None:
        self.name, self.folder, self.kept, self.settings = name, folder, kept, settings
        self.save_weights = save_weights
        self.limit = settings.seconds * arguments.time_scale
        self.parameters = list(parameters)
        self.device = self.parameters[0].device
        self.on_gpu = self.device.type == "cuda"
        self.graphs = self.on_gpu and arguments.graphs
        self.deadline = math.inf if arguments.deadline is None else arguments.deadline
        self.end = self.deadline - JUDGING_SECONDS if arguments.final else math.inf
        """Unix time by which the schedule must be through."""
        self.optimiser = self._make_optimiser()
        self.progress = torch.zeros((), device=self.device)
        """Share of the steps that are done, on the device, for losses that change over time."""
        self.step, self.total, self.phase_begun = 0, settings.steps, -1
        self.seconds = 0.0
        self.curve: list[dict[str, float]] = []
        self._saved = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        self._resume(afresh=arguments.again)

    def _make_optimiser(self) -> torch.optim.AdamW:
        settings = self.settings
        matrices = [parameter for parameter in self.parameters if parameter.ndim > 1]
        others = [parameter for parameter in self.parameters if parameter.ndim <= 1]
        rate: Tensor | float = settings.learning_rate
        if self.on_gpu:
            rate = torch.tensor(rate, device=self.device)
        return torch.optim.AdamW(
            [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=rate,
            betas=(settings.beta1, settings.beta2),
            fused=self.on_gpu,
            capturable=self.on_gpu,
        )

    def run(self, phases: list[Phase]) -> None:
        """All phases from where the state stands.

        Leaves with `UNFINISHED` at the deadline, or soon after SIGTERM, the state saved.
        """
        signal.signal(signal.SIGTERM, self._hurry)
        for index, phase in enumerate(phases):
            if self.step >= round(phase.until * self.total):
                continue
            if index > self.phase_begun:
                if phase.begin is not None:
                    phase.begin()
                self.phase_begun = index
            self._run_phase(phase)
        self.save()
        print(f"{self.name}: done, {self.step} steps in {self.seconds:.0f} s", flush=True)

    def _hurry(self, _signal: int, _frame: object) -> None:
        self.deadline = 0.0

    def _run_phase(self, phase: Phase) -> None:
        steps = [self._take_step(compute) for compute in phase.computes]
        ready = (EAGER_STEPS + 1) * len(steps)
        first, mark = self.step, (time.monotonic(), self.seconds)
        fits = Refit(ready, phase.every or MEASURED_STEPS)  # a window holds one callback
        while self.step < round(phase.until * self.total):
            self._set_schedule()
            metrics = steps[(self.step - first) % len(steps)]()
            self.step += 1
            if phase.callback is not None and self.step % phase.every == 0:
                phase.callback()
            if fits.is_due(self.step - first):
                self._synchronise()
                self.seconds = mark[1] + time.monotonic() - mark[0]
                self._fit_time(fits.seconds_per_step(self.step - first, self.seconds))
            if self.step % self.settings.report_every == 0 or self.step == self.total:
                self.seconds = mark[1] + time.monotonic() - mark[0]
                self._report(metrics)
                if time.monotonic() - self._saved > SAVE_SECONDS:
                    self.save()
                if time.time() > self.deadline:
                    self.save()
                    print(f"{self.name}: stopped at the deadline, step {self.step} of {self.total}", flush=True)
                    raise SystemExit(UNFINISHED)
        self.seconds = mark[1] + time.monotonic() - mark[0]

    def _take_step(self, compute: Compute) -> Compute:
        """One training step as a function; on a GPU, after a few plain ones, the replay of a graph."""

        def plain() -> dict[str, Tensor]:
            self.optimiser.zero_grad(set_to_none=True)
            metrics = compute()
            metrics["loss"].backward()
            norm = nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
            if self.on_gpu:  # the fused optimiser skips the step when this is 1
                self.optimiser.found_inf = (~torch.isfinite(norm)).float()  # type: ignore[attr-defined]
            if self.on_gpu or bool(torch.isfinite(norm)):
                self.optimiser.step()
            return {name: value.detach() for name, value in (metrics | {"gradient": norm}).items()}

        if not self.graphs:
            return plain
        side = torch.cuda.Stream()
        state: dict[str, Any] = {"calls": 0}

        def captured() -> dict[str, Tensor]:
            if state["calls"] < EAGER_STEPS:
                state["calls"] += 1
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    metrics = plain()
                torch.cuda.current_stream().wait_stream(side)
                return metrics
            if "graph" not in state:
                state["graph"] = torch.cuda.CUDAGraph()
                self.optimiser.zero_grad(set_to_none=True)
                try:
                    with torch.cuda.graph(state["graph"]):
                        state["metrics"] = plain()
                except RuntimeError as error:
                    traceback.print_exc()  # names the operation that cannot be captured
                    print(f"{self.name}: no CUDA graph ({error}); run again with --no-graphs", flush=True)
                    raise SystemExit(CAPTURE_FAILED) from None
            state["graph"].replay()
            metrics_now: dict[str, Tensor] = state["metrics"]
            return metrics_now

        return captured

    def _set_schedule(self) -> None:
        """Warm up over some steps, then half a cosine down to zero."""
        share = min(self.step / max(self.total, 1), 1.0)
        rate = self.settings.learning_rate * 0.5 * (1 + math.cos(math.pi * share))
        rate *= min(1.0, (self.step + 1) / self.settings.warmup)
        self.progress.fill_(share)
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _fit_time(self, seconds_per_step: float | None) -> None:
        if seconds_per_step is None:
            return
        left = max(min(self.limit - self.seconds, self.end - time.time()), 0.0)
        fitting = self.step + int(left / seconds_per_step)
        self.total = max(min(self.settings.steps, fitting), self.step + 1)
        milliseconds = 1000 * seconds_per_step
        print(f"{self.name}: {milliseconds:.1f} ms a step, {self.total} steps, after {self.seconds:.0f} s", flush=True)

    def _report(self, metrics: dict[str, Tensor]) -> None:
        values = {name: round(float(value), 6) for name, value in metrics.items()}
        self.curve.append({"step": self.step, "seconds": round(self.seconds, 1)} | values)
        if len(self.curve) % 10 == 1 or self.step == self.total:
            shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            print(f"{self.name} {self.step}/{self.total} {self.seconds:.0f} s  {shown}", flush=True)

    def _synchronise(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def save(self) -> None:
        """The state, so that the same command goes on from here; the weights; the curve as JSON and PNG."""
        self._synchronise()
        self._saved = time.monotonic()
        state = {
            "kept": self.kept.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "numbers": (self.step, self.total, self.phase_begun, self.seconds),
            "random": torch.cuda.get_rng_state() if self.on_gpu else torch.get_rng_state(),
            "curve": self.curve,
        }
        torch.save(state, self.folder / "state.new")
        os.replace(self.folder / "state.new", self.folder / "state.pt")
        self.save_weights()
        (self.folder / "curve.json").write_text(json.dumps(self.curve))
        plot_curve(self.curve, self.name, self.folder / "curve.png")

    def _resume(self, afresh: bool) -> None:
        path = self.folder / "state.pt"
        if not path.is_file() or afresh:
            return
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.kept.load_state_dict(state["kept"])
        rates = [group["lr"] for group in self.optimiser.param_groups]
        self.optimiser.load_state_dict(state["optimiser"])
        for group, rate in zip(self.optimiser.param_groups, rates, strict=True):
            group["lr"] = rate
        self.step, self.total, self.phase_begun, self.seconds = state["numbers"]
        self.curve = state["curve"]
        if self.on_gpu:
            torch.cuda.set_rng_state(state["random"].cpu())
        else:
            torch.set_rng_state(state["random"].cpu())
        print(f"{self.name}: going on at step {self.step} of {self.total}", flush=True)
