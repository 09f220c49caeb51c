"""Seconds a frame, from a clock that is set by hand."""

from __future__ import annotations

import pytest

from voicechat_mlx.clock import StageClock
from voicechat_mlx.timing import KEPT_FRAMES, FrameTimes, Profile, StageTiming


@pytest.fixture
def clock() -> StageClock:
    clock = StageClock()
    clock.seconds["prompt"] = 5.0
    return clock


def spend(clock: StageClock, **seconds: float) -> None:
    for stage, spent in seconds.items():
        clock.seconds[stage] = clock.seconds.get(stage, 0.0) + spent


def test_a_frame_has_what_was_spent_since_the_frame_before_it(clock: StageClock) -> None:
    times = FrameTimes(clock)
    spend(clock, frontend=1.0, llm=2.0)
    assert times.record(1) == {"frontend": 1.0, "llm": 2.0}
    spend(clock, llm=4.0)
    assert times.record(1) == {"llm": 4.0}


def test_frames_of_one_push_share_its_time(clock: StageClock) -> None:
    times = FrameTimes(clock)
    spend(clock, llm=6.0, codec=3.0)
    assert times.record(3) == {"llm": 2.0, "codec": 1.0}
    assert times.profile == Profile(
        frames=3,
        stages={"llm": StageTiming(median=2.0, p95=2.0), "codec": StageTiming(median=1.0, p95=1.0)},
        total=StageTiming(median=3.0, p95=3.0),
    )


def test_median_and_p95_are_those_of_the_textbook(clock: StageClock) -> None:
    """Of 1 … 101 the median is 51 and 95 % of the way from the first to the last is 96."""
    times = FrameTimes(clock)
    for seconds in range(101, 0, -1):
        spend(clock, llm=seconds)
        times.record(1)
    assert times.profile.total == StageTiming(median=51.0, p95=96.0)


def test_a_stage_that_a_frame_does_without_counts_as_zero_there(clock: StageClock) -> None:
    times = FrameTimes(clock)
    spend(clock, rare=3.0)
    times.record(1)
    for _ in range(2):
        spend(clock, llm=1.0)
        times.record(1)
    assert times.profile.stages["rare"].median == 0.0


def test_only_the_latest_frames_are_kept(clock: StageClock) -> None:
    times = FrameTimes(clock)
    spend(clock, llm=100.0)
    times.record(1)
    spend(clock, llm=2.0 * KEPT_FRAMES)
    times.record(KEPT_FRAMES)
    assert times.profile.frames == KEPT_FRAMES
    assert times.profile.stages["llm"].p95 == pytest.approx(2.0)


def test_without_frames_a_profile_is_empty(clock: StageClock) -> None:
    assert FrameTimes(clock).profile == Profile(frames=0, stages={}, total=StageTiming(median=0.0, p95=0.0))
