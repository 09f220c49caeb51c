"""How much memory a checkpoint needs and how much there is, so that what cannot fit is refused before it is read."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from voicechat_mlx.config import VoiceChatConfig
from voicechat_mlx.errors import CheckpointError
from voicechat_mlx.names import canonical_name
from voicechat_mlx.precision import Precision, precision

WORKING_ROOM = 1_500_000_000
"""Bytes beside weights and key/value caches: activations, the voice prompt, what MLX and Python hold themselves."""
WHOLE_SIZE = 1_000_000_000
"""Weights from which on the working room is needed whole; smaller models need proportionally less."""
LIMIT_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where Linux says what a container may use: control groups version 2 and 1."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What one choice of precision needs, in bytes."""

    weights: int
    per_minute: int
    """Keys and values of each minute of talk, for the first ten minutes or so: then the talker's windows are full."""

    @property
    def to_start(self) -> int:
        """For the weights, one minute of talk, and room to work in."""
        room = WORKING_ROOM * min(self.weights, WHOLE_SIZE) // WHOLE_SIZE
        return self.weights + self.per_minute + room


def memory_needed(config: VoiceChatConfig, tensors: Mapping[str, mx.array], chosen: Precision) -> Memory:
    """Weights after casting, and key/value caches: batch 1 in the language model, batch 2 (guidance) in the talker."""
    text, tts = config.text_config, config.tts_config
    named = ((canonical_name(published), tensor) for published, tensor in tensors.items())
    weights = sum(tensor.size * chosen.dtype(name, tensor.dtype).size for name, tensor in named if name is not None)
    attention_layers = text.hybrid_override_pattern.count("*")
    per_frame = attention_layers * 2 * text.num_key_value_heads * text.head_dim * chosen.perception_llm.size
    per_frame += 2 * tts.num_hidden_layers * 2 * tts.num_key_value_heads * tts.head_dim * chosen.talker.size
    return Memory(weights=weights, per_minute=round(per_frame * 60 / config.frame_duration))


def machine_memory() -> int:
    """Bytes that weights and caches may take: of a card that has its own memory, else of the machine."""
    if mx.default_device().type == mx.DeviceType.gpu:
        info = mx.device_info()
        if "total_memory" in info:  # a card beside the processor
            return int(info["total_memory"])
        return min(_main_memory(), int(info.get("max_recommended_working_set_size", _main_memory())))
    return _main_memory()


def require_fit(
    config: VoiceChatConfig, tensors: Mapping[str, mx.array], dtype: str, *, name: object, force: bool = False
) -> None:
    """Refuse a checkpoint that cannot fit at that choice of precision. Reads no tensor. Raises CheckpointError."""
    needed = memory_needed(config, tensors, precision(dtype))
    leaner = memory_needed(config, tensors, precision("bfloat16")).to_start
    advice = f"--dtype bfloat16 needs {in_words(leaner)}, " if leaner < needed.to_start else ""
    require_memory(
        needed.to_start,
        f"{name} at --dtype {dtype}, with {in_words(needed.weights)} of weights,",
        advice=f"{advice}`voicechat convert --bits 4` makes a smaller checkpoint, ",
        force=force,
    )


def require_memory(needed: int, what: str, *, advice: str = "", force: bool = False) -> None:
    """Raises CheckpointError with the figures when `needed` bytes are more than there are, unless `force`."""
    there = machine_memory()
    if needed > there and not force:
        figures = f"needs {in_words(needed)} of memory and there is {in_words(there)}"
        raise CheckpointError(f"{what} {figures}; {advice}--force tries all the same")


def give_back_freed() -> None:
    """Return to the system what was freed in between, which the C library of Linux keeps until it is asked."""
    with suppress(OSError, AttributeError):  # other C libraries have no such call
        ctypes.CDLL(None).malloc_trim(0)


def in_words(size: int) -> str:
    """`2_350_000_000` → `2.35 GB`; below that MB."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.2f} MB"


def _main_memory() -> int:
    """The machine's, or what its container may use of it."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_container_limits()])


def _container_limits() -> list[int]:
    """What control groups allow; nothing where there are none or they set no limit (`max`)."""
    found = []
    for file in LIMIT_FILES:
        try:
            text = Path(file).read_text(encoding="ascii").strip()
        except OSError:
            continue
        found += [int(text)] if text.isdecimal() else []
    return found
