"""Facts about a checkpoint and this machine, for people who want to know why something does or does not run.

Unlike loading, which stops at the first fault, this looks at everything: names and shapes from the headers, then
each tensor once, one at a time.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from voicechat_mlx.blas import preload_openblas
from voicechat_mlx.checkpoint import Checkpoint
from voicechat_mlx.health import fault
from voicechat_mlx.memory import Memory, memory_needed
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.names import DTYPES, canonical_name
from voicechat_mlx.precision import precision
from voicechat_mlx.weights import Report, survey


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What was found out."""

    folder: Path
    files: dict[str, int]
    """Weight file → bytes."""
    report: Report
    damaged: dict[str, str]
    """Tensor name → `holds only zeros` or `holds NaN or infinity`."""
    unknown_keys: tuple[str, ...]
    """Dotted keys of config.json that change nothing."""
    memory: dict[str, Memory]
    """By choice of `--dtype`."""
    back_end: str

    @property
    def problems(self) -> tuple[str, ...]:
        """One line for each reason why the checkpoint cannot be used."""
        return (*self.report.problems, *(f"{name} {trouble}" for name, trouble in self.damaged.items()))


def inspect_checkpoint(source: str | os.PathLike[str] | None = None) -> Inspection:
    """A folder, a Hub id, or None for the bundled model. Raises CheckpointError only when files are missing."""
    checkpoint = Checkpoint.open(source)
    tensors = checkpoint.tensors()
    report = survey(VoiceChat(checkpoint.config), tensors, checkpoint.config)
    memory = {choice: memory_needed(checkpoint.config, tensors, precision(choice)) for choice in DTYPES}
    return Inspection(
        folder=checkpoint.folder,
        files={path.name: path.stat().st_size for path in checkpoint.headers},
        report=report,
        damaged=dict(_damaged(tensors)),
        unknown_keys=tuple(sorted(checkpoint.config.unknown)),
        memory=memory,
        back_end=back_end(),
    )


def back_end() -> str:
    """What MLX computes on here, for example `Metal GPU, MLX 0.32.4`."""
    on_gpu = mx.default_device().type == mx.DeviceType.gpu
    if on_gpu:
        place = "Metal GPU" if mx.metal.is_available() else "CUDA GPU"
    else:
        library = preload_openblas()
        place = f"CPU with {library}" if library else "CPU"
    return f"{place}, MLX {importlib.metadata.version('mlx')}"


def _damaged(tensors: dict[str, mx.array]) -> Iterator[tuple[str, str]]:
    """(name, what is wrong) of each damaged tensor; `tensors` is emptied, so one at a time is in memory."""
    for published in list(tensors):
        name, tensor = canonical_name(published), tensors.pop(published)
        trouble = fault(name, tensor) if name is not None else None
        if trouble:
            yield published, trouble
