"""Quantised modules: told apart by their scales, cross-checked with the map in config.json.

MLX packs a weight [out, in] into uint32 [out, in · bits / 32] beside scales and biases [out, in / group_size].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from voicechat_mlx.config import Quantization
from voicechat_mlx.names import canonical_name, published_name
from voicechat_mlx.precision import dtype_name

MODULE_QUANTISED_SUFFIXES = (".scales", ".biases")
"""What a quantised module has beside its packed `.weight`."""


@dataclass(frozen=True, kw_only=True)
class Quantised:
    """What was found out about the quantised modules of a checkpoint."""

    modules: dict[str, tuple[int, int]]
    """Canonical module path → (group_size, bits)."""
    names: frozenset[str]
    """Every tensor name that belongs to a module judged here, sound or not."""
    problems: tuple[str, ...]


def find_quantised(
    model: nn.Module,
    declared: Mapping[str, mx.array],
    found: Mapping[str, mx.array],
    quantization: Quantization | None,
) -> Quantised:
    """Judge every module that has scales or biases or is listed in the map; reads no tensor.

    A map that names no module at all is MLX's short form: its group size and bits hold for every module with scales.
    """
    modules = {path: module for path, module in model.named_modules() if hasattr(module, "to_quantized")}
    in_map = quantization.modules if quantization else {}
    listed = {canonical_name(path) or path: entry for path, entry in in_map.items()}
    default = (quantization.group_size, quantization.bits) if quantization and not listed else None
    packed = {name.rpartition(".")[0] for name in found if name.endswith(MODULE_QUANTISED_SUFFIXES)}
    sound: dict[str, tuple[int, int]] = {}
    problems: list[str] = []
    for path in sorted(listed.keys() | (packed & modules.keys())):
        entry = listed.get(path, default)
        lines = _judge(path, modules, declared, found, entry)
        if entry is not None and not lines:
            sound[path] = entry
        problems += lines
    judged = modules.keys() & (packed | listed.keys())
    suffixes = (".weight", *MODULE_QUANTISED_SUFFIXES)
    names = frozenset(path + suffix for path in judged for suffix in suffixes)
    return Quantised(modules=sound, names=names, problems=tuple(problems))


def _judge(
    path: str,
    modules: Mapping[str, nn.Module],
    declared: Mapping[str, mx.array],
    found: Mapping[str, mx.array],
    entry: tuple[int, int] | None,
) -> list[str]:
    """What is wrong with one module; [] when it is sound."""
    shown = published_name(path)
    absent = [suffix for suffix in MODULE_QUANTISED_SUFFIXES if path + suffix not in found]
    if path not in modules:
        return [f"config.json lists {shown} as quantised but the model has no linear layer or embedding of that name"]
    if len(absent) == len(MODULE_QUANTISED_SUFFIXES):
        return [f"config.json lists {shown} as quantised but it has no scales; convert the checkpoint again"]
    if absent:
        return [f"{shown} is quantised but {shown}{absent[0]} is missing; download the checkpoint again"]
    if entry is None:
        return [f"{shown} has scales but config.json's quantization map does not list it; convert the checkpoint again"]
    return _tensors(path, declared[path + ".weight"].shape, found, entry) if path + ".weight" in found else []


def _tensors(path: str, shape: tuple[int, ...], found: Mapping[str, mx.array], entry: tuple[int, int]) -> list[str]:
    """Lines for the tensors of one module that lack the shape that group size and bits imply, or the kind of number."""
    (rows, columns), (group_size, bits) = shape, entry
    if columns % group_size:
        return [f"{published_name(path)} has {columns} inputs, not a multiple of the group size {group_size}"]
    expected = {".weight": (rows, columns * bits // 32)}
    expected |= {suffix: (rows, columns // group_size) for suffix in MODULE_QUANTISED_SUFFIXES}
    packing = f"{bits} bits in groups of {group_size}"
    lines = [
        f"{published_name(path + suffix)} is {found[path + suffix].shape}; expected {shape} for {packing}"
        for suffix, shape in expected.items()
        if found[path + suffix].shape != shape
    ]
    stored = found[path + ".weight"].dtype
    if stored != mx.uint32:
        lines.append(f"{published_name(path)}.weight holds {dtype_name(stored)}; a packed weight is uint32")
    for suffix in MODULE_QUANTISED_SUFFIXES:
        kind = found[path + suffix].dtype
        if not mx.issubdtype(kind, mx.floating):
            lines.append(f"{published_name(path + suffix)} holds {dtype_name(kind)}; expected floating point numbers")
    return lines
