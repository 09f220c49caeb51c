"""How fast a model runs here: milliseconds per 80 ms frame by stage, first audio, real-time factor, memory.

Two streams of the same sound: one as sessions run (its totals count), one that waits for each stage (its shares count).
"""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from voicechat_mlx.events import Audio
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.offline import generate
from voicechat_mlx.session import Session

WARM_UP_FRAMES = 12
"""Pushes that are not counted: they compile, fill caches and reach the steady state."""
STAGES = ("frontend", "perception", "rnnt", "llm", "talker", "codec")


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Milliseconds per frame."""

    median: float
    p95: float

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        """Seconds of many frames → their median and 95th percentile."""
        median, p95 = np.percentile(np.array(seconds) * 1e3, [50, 95])
        return cls(median=float(median), p95=float(p95))


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What was measured, and on what."""

    frames: int
    prompt_seconds: float
    """From opening the session to having heard the system prompt."""
    first_audio_ms: float
    """From the push that completed the first frame to samples in hand, the wait for its successor's push excluded."""
    total: Timing
    stages: dict[str, Timing]
    offline_ms: float
    """Per frame, the whole recording at once."""
    real_time_factor: float
    """Median time per frame over the frame's 80 ms; below 1 keeps up with speech."""
    peak_bytes: int
    active_bytes: int
    machine: dict[str, Any] = field(default_factory=dict)


def run_benchmark(model: VoiceChat, samples: NDArray[np.float32], system_prompt: str | None = None) -> Benchmark:
    """Stream the samples (16 kHz) through two sessions and answer them once offline."""
    size = model.config.input_samples_per_frame
    pushes = [samples[i : i + size] for i in range(0, len(samples) - size + 1, size)]
    mx.reset_peak_memory()
    begin = time.perf_counter()
    session = Session(model, system_prompt)
    prompt_seconds = time.perf_counter() - begin
    totals, first_audio = [], 0.0
    for pcm in pushes:
        begin = time.perf_counter()
        events = session.push(pcm)
        totals.append(time.perf_counter() - begin)
        if not first_audio and any(isinstance(event, Audio) for event in events):
            first_audio = sum(totals)
    session.finish()
    peak, active = mx.get_peak_memory(), mx.get_active_memory()
    total = Timing.of(totals[WARM_UP_FRAMES:])
    stages = _stages(Session(model, system_prompt, profile=True), pushes)
    begin = time.perf_counter()
    result = generate(model, samples, system_prompt, extra_decoding_seconds=0.0)
    offline = time.perf_counter() - begin - result.seconds["prompt"]
    return Benchmark(
        frames=len(totals) - WARM_UP_FRAMES,
        prompt_seconds=prompt_seconds,
        first_audio_ms=first_audio * 1e3,
        total=total,
        stages=stages,
        offline_ms=offline / result.frames * 1e3,
        real_time_factor=total.median / (model.config.frame_duration * 1e3),
        peak_bytes=peak,
        active_bytes=active,
        machine=machine(),
    )


def _stages(session: Session, pushes: list[NDArray[np.float32]]) -> dict[str, Timing]:
    spent: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for pcm in pushes:
        before = session.seconds
        session.push(pcm)
        for stage in STAGES:
            spent[stage].append(session.seconds.get(stage, 0.0) - before.get(stage, 0.0))
    return {stage: Timing.of(seconds[WARM_UP_FRAMES:]) for stage, seconds in spent.items()}


def machine() -> dict[str, Any]:
    """Device, system and versions, for a table that can be pasted."""
    info = mx.device_info()
    return {
        "device": str(info.get("device_name") or info.get("architecture") or mx.default_device()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "mlx": version("mlx"),
    }
