"""Tensors that look damaged: all zero, NaN or infinite, or of another size than their siblings in the other layers."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mlx.core as mx

from voicechat_mlx.checkpoint import Checkpoint
from voicechat_mlx.health import fault
from voicechat_mlx.names import canonical_name

FACTOR = 100.0
"""How far from the median RMS of its siblings a tensor's may be, either way. A slipped exponent bit gives 256."""
LARGEST_RMS = 1e4
"""For tensors without siblings. Trained ones are around 1 or below."""
FEWEST_SIBLINGS = 3
NUMBERS_AT_ONCE = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Flag:
    """A tensor that looks wrong."""

    name: str
    trouble: str


def flagged_tensors(checkpoint: Checkpoint, read: Callable[[], None] = lambda: None) -> list[Flag]:
    """Reads every tensor once, one at a time; `read` is called after each."""
    tensors, flags = checkpoint.tensors(), []
    sizes: dict[str, float] = {}
    for published in list(tensors):
        tensor, name = tensors.pop(published), canonical_name(published)
        if name is not None:
            trouble = fault(name, tensor)
            if trouble:
                flags.append(Flag(name=published, trouble=trouble))
            elif mx.issubdtype(tensor.dtype, mx.floating):
                sizes[published] = rms(tensor)
        del tensor
        mx.clear_cache()
        read()
    return flags + list(wildly_scaled(sizes))


def wildly_scaled(sizes: dict[str, float]) -> Iterator[Flag]:
    """Tensor name → RMS; those that stand apart from tensors of the same name in other layers."""
    families: dict[str, list[str]] = defaultdict(list)
    for name in sizes:
        families[re.sub(r"\.\d+\.", ".N.", name)].append(name)
    for family in families.values():
        others = statistics.median(sizes[name] for name in family)
        for name in family:
            if len(family) >= FEWEST_SIBLINGS and not others / FACTOR <= sizes[name] <= others * FACTOR:
                yield Flag(name=name, trouble=f"has RMS {sizes[name]:.1e}, its {len(family) - 1} siblings {others:.1e}")
            elif sizes[name] > LARGEST_RMS:
                yield Flag(name=name, trouble=f"has RMS {sizes[name]:.1e}")


def rms(tensor: mx.array) -> float:
    """In float32, a part at a time."""
    flat, total = tensor.reshape(-1), 0.0
    for start in range(0, flat.size, NUMBERS_AT_ONCE):
        total += float(mx.square(flat[start : start + NUMBERS_AT_ONCE].astype(mx.float32)).sum())
    return math.sqrt(total / max(1, flat.size))
