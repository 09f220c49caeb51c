"""How long frames took, stage by stage: the latest few thousand, so that an hour of talk takes no more memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from voicechat_mlx.clock import StageClock

KEPT_FRAMES = 4096
"""Five and a half minutes."""


@dataclass(frozen=True, kw_only=True)
class StageTiming:
    """Seconds a frame."""

    median: float
    p95: float
    """19 frames of 20 took less."""

    @classmethod
    def of(cls, seconds: Iterable[float]) -> StageTiming:
        """Of one value a frame; zeros when there is none."""
        values = [*seconds] or [0.0]
        return cls(median=float(np.median(values)), p95=float(np.percentile(values, 95)))


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Computing time of a session's latest frames, waiting not included."""

    frames: int
    """How many frames this summary rests on, at most `KEPT_FRAMES`."""
    stages: dict[str, StageTiming]
    total: StageTiming
    """All stages of a frame together."""


class FrameTimes:
    """Turns the seconds that a `StageClock` adds up into seconds a frame. Four bytes a frame and stage."""

    def __init__(self, clock: StageClock) -> None:
        self._clock = clock
        self._before = dict(clock.seconds)
        self._frames = 0
        self._stages: dict[str, array[float]] = {}

    def record(self, frames: int) -> dict[str, float]:
        """That many frames are done: each one's share of the time since the last call, by stage."""
        now = dict(self._clock.seconds)
        spent = {stage: seconds - self._before.get(stage, 0.0) for stage, seconds in now.items()}
        share = {stage: seconds / frames for stage, seconds in spent.items() if seconds > 0}
        self._before = now
        kept = min(frames, KEPT_FRAMES)
        for stage in {**self._stages, **share}:
            values = self._stages.setdefault(stage, array("f", [0.0]) * self._frames)
            values.extend([share.get(stage, 0.0)] * kept)
            del values[: max(0, len(values) - KEPT_FRAMES)]
        self._frames = min(self._frames + kept, KEPT_FRAMES)
        return share

    @property
    def profile(self) -> Profile:
        """A stage that a frame did not need counts as zero there."""
        columns = [np.array(values, np.float64) for values in self._stages.values()]
        return Profile(
            frames=self._frames,
            stages={stage: StageTiming.of(values) for stage, values in self._stages.items()},
            total=StageTiming.of(np.sum(columns, axis=0) if columns else []),
        )
