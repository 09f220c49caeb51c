"""Milliseconds per 80 ms frame by stage, and whole recordings, at two sizes: records, never fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import voicechat_mlx as vc
from tests.bench import measure
from tests.bench.checkpoints import SIZES, make_checkpoint
from tests.bench.compare import QUESTION
from tests.bench.ours import TimedSession
from tests.bench.peer import CACHE

FRAMES = {"tiny": 100, "160m": 40}
RECORDING_SECONDS = 2


class _StageClock:
    """A clock that runs only while one stage of one session does, so that pytest-benchmark sees that stage alone."""

    session: TimedSession
    stage: str

    def read(self) -> float:
        return self.session.seconds[self.stage]


CLOCK = _StageClock()


@pytest.fixture(scope="module", params=SIZES)
def size(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(size: str) -> vc.VoiceChat:
    return vc.load(make_checkpoint(size, CACHE / "checkpoints" / size))


@pytest.fixture
def pushes(size: str) -> Iterator[measure.Samples]:
    return iter(measure.frames_of(measure.read_speech(QUESTION), measure.WARM_UP_FRAMES + FRAMES[size]))


@pytest.mark.parametrize("stage", measure.STAGES)
@pytest.mark.benchmark(timer=CLOCK.read)
def test_one_stage_of_a_streamed_frame(stage, size, model, pushes, benchmark) -> None:
    CLOCK.session, CLOCK.stage = TimedSession(model), stage
    _record(benchmark, f"{size}: {stage}", CLOCK.session, pushes, FRAMES[size])


def test_a_streamed_frame(size, model, pushes, benchmark) -> None:
    _record(benchmark, f"{size}: total", TimedSession(model), pushes, FRAMES[size])


def test_a_whole_recording(size, model, benchmark) -> None:
    speech = measure.lengthened(measure.read_speech(QUESTION), RECORDING_SECONDS * measure.SAMPLE_RATE)
    benchmark.group = f"{size}: {RECORDING_SECONDS} s offline"
    result = benchmark.pedantic(
        vc.generate, (model, speech), {"system_prompt": "", "extra_decoding_seconds": 0}, rounds=3, warmup_rounds=1
    )
    benchmark.extra_info["ms_per_frame"] = {stage: s / result.frames * 1e3 for stage, s in result.seconds.items()}


def _record(benchmark, group: str, session: TimedSession, pushes: Iterator[measure.Samples], rounds: int) -> None:
    benchmark.group = group
    benchmark.pedantic(
        session.push, setup=lambda: ((next(pushes),), {}), rounds=rounds, warmup_rounds=measure.WARM_UP_FRAMES
    )
