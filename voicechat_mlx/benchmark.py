"""How fast a model runs here: milliseconds per 80 ms frame by stage, first audio, real-time factor, memory.

The totals come from a session as callers run it. Where it computes whole frames at once, as on a GPU, the shares of the
stages come from a second one, which waits for each stage and so overlaps nothing.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from numpy.typing import NDArray

import voicechat_mlx
from voicechat_mlx.blas import preload_openblas
from voicechat_mlx.events import Audio
from voicechat_mlx.memory import in_words, machine_memory
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.names import NETWORKS, network_of
from voicechat_mlx.offline import generate
from voicechat_mlx.precision import dtype_name
from voicechat_mlx.session import Session

WARM_UP_FRAMES = 12
"""Pushes that are not counted: they compile, fill caches and reach the steady state."""
FEWEST_FRAMES = 2 * WARM_UP_FRAMES
STAGES = {
    "frontend": "log-mel",
    "perception": "perception",
    "rnnt": "transcript (RNNT)",
    "llm": "language model",
    "talker": "talker",
    "codec": "codec",
}
"""A session's clock's name for each → in words, in the order of the data flow."""

Progress = Callable[[int, int], None]
Pushes = list[NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Milliseconds per frame."""

    median: float
    p95: float
    slowest: float

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> Timing:
        """Those of many frames → their median, 95th percentile and maximum."""
        median, p95, slowest = np.percentile(np.array(milliseconds), [50, 95, 100])
        return cls(median=float(median), p95=float(p95), slowest=float(slowest))


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What was measured."""

    frames: int
    """Counted ones: those after the warm-up."""
    prompt_tokens: int
    first_session_ms: float
    """Until the model's very first session has heard its prompts: computes the voice prompt, compiles kernels."""
    prompt_ms: float
    """The same for a later session, of the system prompt alone."""
    first_audio_ms: float
    """From the first sample at a microphone to the first frame of the answer, in a session that is open already."""
    total: Timing
    stages: dict[str, Timing]
    real_time_factor: float
    """Median time per frame over the frame's 80 ms; below 1 keeps up with speech."""
    offline_ms: float
    """Per frame, the whole recording at once."""
    weight_bytes: int
    peak_bytes: int
    """The most that MLX held while it streamed, weights included."""
    resident_bytes: int
    """The most main memory that the process ever had, loading included."""
    total_ms: list[float]
    """Every counted frame in turn."""
    stage_ms: dict[str, list[float]]


def run_benchmark(
    model: VoiceChat,
    samples: NDArray[np.float32],
    system_prompt: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Benchmark:
    """Stream the samples (16 kHz, at least `FEWEST_FRAMES`) frame by frame, and answer them once offline."""
    size, frame_ms = model.config.input_samples_per_frame, model.config.frame_duration * 1e3
    pushes = [samples[i : i + size] for i in range(0, len(samples) - size + 1, size)]
    assert len(pushes) >= FEWEST_FRAMES, f"{len(pushes)} frames are too few to measure"
    work = _Counted(progress, frames=WARM_UP_FRAMES + (3 if model.run.compiled else 2) * len(pushes))

    first_session_ms, session = _opened(model, system_prompt, seed)
    _Stream(session, pushes[:WARM_UP_FRAMES], work)
    mx.reset_peak_memory()
    prompt_ms, session = _opened(model, system_prompt, seed)
    stream = _Stream(session, pushes, work)
    peak = mx.get_peak_memory()
    shares = stream
    if model.run.compiled:
        shares = _Stream(Session(model, system_prompt, seed, profile=True), pushes, work)

    begin = time.perf_counter()
    result = generate(model, samples, system_prompt, extra_decoding_seconds=0.0, seed=seed)
    offline = time.perf_counter() - begin - result.seconds["prompt"]
    work.done(len(pushes))
    total = Timing.of(stream.total_ms[WARM_UP_FRAMES:])
    counted = {stage: spent[WARM_UP_FRAMES:] for stage, spent in shares.stage_ms.items()}
    return Benchmark(
        frames=len(pushes) - WARM_UP_FRAMES,
        prompt_tokens=_prompt_tokens(model, system_prompt),
        first_session_ms=first_session_ms,
        prompt_ms=prompt_ms,
        first_audio_ms=first_audio_ms(stream.until_first_audio, frame_ms),
        total=total,
        stages={stage: Timing.of(spent) for stage, spent in counted.items()},
        real_time_factor=total.median / frame_ms,
        offline_ms=offline * 1e3 / result.frames,
        weight_bytes=_bytes_of(model),
        peak_bytes=peak,
        resident_bytes=most_resident_memory(),
        total_ms=stream.total_ms[WARM_UP_FRAMES:],
        stage_ms=counted,
    )


class _Counted:
    """Tells how many frames of all runs are done."""

    def __init__(self, progress: Progress | None, *, frames: int) -> None:
        self._progress, self._frames, self._so_far = progress, frames, 0

    def done(self, frames: int) -> None:
        self._so_far += frames
        if self._progress:
            self._progress(self._so_far, self._frames)


class _Stream:
    """One session fed frame by frame under the clock."""

    def __init__(self, session: Session, pushes: Pushes, work: _Counted) -> None:
        self.total_ms: list[float] = []
        self.stage_ms: dict[str, list[float]] = {stage: [] for stage in STAGES}
        self._heard: list[bool] = []
        for pcm in pushes:
            before = session.seconds
            begin = time.perf_counter()
            events = session.push(pcm)
            self.total_ms.append((time.perf_counter() - begin) * 1e3)
            self._heard.append(any(isinstance(event, Audio) for event in events))
            after = session.seconds
            for stage, spent in self.stage_ms.items():
                spent.append((after.get(stage, 0.0) - before.get(stage, 0.0)) * 1e3)
            work.done(1)

    @property
    def until_first_audio(self) -> list[float]:
        """Milliseconds of every push up to the one that brought audio."""
        return self.total_ms[: self._heard.index(True) + 1]


def first_audio_ms(push_ms: Sequence[float], frame_ms: float) -> float:
    """Computing time of every push up to the one that brings audio → milliseconds since the first sample was spoken.

    A push begins when its sound has been spoken and the push before it is done. The codec hands a frame over when it
    has heard the next one, so the sound of two frames comes before the first audio.
    """
    now = 0.0
    for index, spent in enumerate(push_ms):
        now = max(now, (index + 1) * frame_ms) + spent
    return now


def most_resident_memory() -> int:
    """Bytes of main memory that the process had at its largest."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


LARGE_SHARE = 0.1
"""Of a network's bytes, from which on a precision is named."""


def precisions(model: VoiceChat) -> dict[str, str]:
    """Network → what its bytes are, ids and small shares apart: `float32`, `4 bits`, `float32 and bfloat16`."""
    stored: dict[str, Counter[str]] = defaultdict(Counter)
    for name, module in model.named_modules():
        kind = f"{module.bits} bits" if "scales" in module else None
        for own, array in module.items():
            if not isinstance(array, mx.array) or own.startswith("_"):
                continue
            if kind or mx.issubdtype(array.dtype, mx.floating):
                path = f"{name}.{own}" if name else own
                stored[network_of(path)][kind or dtype_name(array.dtype)] += array.nbytes
    return {
        network: " and ".join(
            kind for kind, share in stored[network].most_common() if share >= LARGE_SHARE * stored[network].total()
        )
        for network in dict.fromkeys(NETWORKS.values())
    }


def machine() -> dict[str, str]:
    """Device, system and versions, in words."""
    info, on_gpu = mx.device_info(), mx.default_device().type == mx.DeviceType.gpu
    found = {
        "device": str(info.get("device_name") or info.get("architecture")) + ("" if on_gpu else f", {_cores()} cores"),
        "memory": in_words(machine_memory()),
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        "MLX": importlib.metadata.version("mlx"),
        "voicechat": voicechat_mlx.__version__,
    }
    if sys.platform == "linux" and not on_gpu:
        found["BLAS"] = preload_openblas() or "MLX's own"
    return found


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _opened(model: VoiceChat, system_prompt: str | None, seed: int) -> tuple[float, Session]:
    begin = time.perf_counter()
    session = Session(model, system_prompt, seed)
    return (time.perf_counter() - begin) * 1e3, session


def _prompt_tokens(model: VoiceChat, system_prompt: str | None) -> int:
    config = model.config
    prompt = config.default_system_prompt if system_prompt is None else system_prompt
    return len(model.tokenizer.prompt_ids(prompt, bos=config.bos_token_id, eos=config.eos_token_id))


def _bytes_of(model: VoiceChat) -> int:
    leaves: Any = tree_flatten(model.parameters())
    return sum(array.nbytes for _, array in leaves)
