"""Facts about a checkpoint and this machine, for people who want to know why something does or does not run.

Unlike loading, which stops at the first fault, this looks at everything: names and shapes from the headers, then
each tensor once, one at a time.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from voicechat_mlx.blas import preload_openblas
from voicechat_mlx.checkpoint import Checkpoint
from voicechat_mlx.config import VoiceChatConfig
from voicechat_mlx.health import fault
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.names import canonical_name
from voicechat_mlx.precision import precision
from voicechat_mlx.weights import Report, survey

DTYPES = ("auto", "float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What one choice of `--dtype` needs, in bytes."""

    weights: int
    per_minute: int
    """Keys and values of each minute of talk, for the first ten minutes or so: then the talker's windows are full."""


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
    memory = {choice: memory_needed(checkpoint.config, tensors, choice) for choice in DTYPES}
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


def memory_needed(config: VoiceChatConfig, tensors: Mapping[str, mx.array], choice: str) -> Memory:
    """Weights after casting, and key/value caches: batch 1 in the language model, batch 2 (guidance) in the talker."""
    chosen, text, tts = precision(choice), config.text_config, config.tts_config
    named = ((canonical_name(published), tensor) for published, tensor in tensors.items())
    weights = sum(tensor.size * chosen.dtype(name, tensor.dtype).size for name, tensor in named if name is not None)
    attention_layers = text.hybrid_override_pattern.count("*")
    per_frame = attention_layers * 2 * text.num_key_value_heads * text.head_dim * chosen.perception_llm.size
    per_frame += 2 * tts.num_hidden_layers * 2 * tts.num_key_value_heads * tts.head_dim * chosen.talker.size
    return Memory(weights=weights, per_minute=round(per_frame * 60 / config.frame_duration))


def _damaged(tensors: dict[str, mx.array]) -> Iterator[tuple[str, str]]:
    """(name, what is wrong) of each damaged tensor; `tensors` is emptied, so one at a time is in memory."""
    for published in list(tensors):
        name, tensor = canonical_name(published), tensors.pop(published)
        trouble = fault(name, tensor) if name is not None else None
        if trouble:
            yield published, trouble
