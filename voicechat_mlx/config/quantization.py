"""The quantisation map: which modules are quantised, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from voicechat_mlx.config.checks import require
from voicechat_mlx.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """Which modules are quantised, by full module path, each as (group_size, bits)."""

    group_size: int = 64
    bits: int = 4
    modules: dict[str, tuple[int, int]] = field(default_factory=dict)


def parse_quantization(maps: list[Any]) -> Quantization | None:
    """`quantization` and its copy `quantization_config` (must agree) → Quantization."""
    if not maps:
        return None
    if any(not isinstance(entry, dict) for entry in maps):
        raise ConfigError("config.json: quantization must be an object of module paths")
    if len(maps) == 2 and maps[0] != maps[1]:
        raise ConfigError("config.json: quantization and quantization_config disagree; keep one of them")
    group_size, bits = _entry("quantization", maps[0], (64, 4))
    modules = {
        path: _entry(f"quantization.{path}", entry, (group_size, bits))
        for path, entry in maps[0].items()
        if isinstance(entry, dict) or entry is True
    }
    return Quantization(group_size=group_size, bits=bits, modules=modules)


def _entry(where: str, entry: Any, default: tuple[int, int]) -> tuple[int, int]:
    """One module's entry → (group_size, bits); `true` takes the defaults."""
    if entry is True:
        return default
    group_size, bits = entry.get("group_size", default[0]), entry.get("bits", default[1])
    require(
        entry.get("mode", "affine") == "affine",
        f"config.json: {where}.mode {entry.get('mode')!r}: only 'affine' is implemented",
    )
    require(group_size in (32, 64, 128), f"config.json: {where}.group_size must be 32, 64 or 128, found {group_size!r}")
    require(bits in (2, 3, 4, 5, 6, 8), f"config.json: {where}.bits must be 2, 3, 4, 5, 6 or 8, found {bits!r}")
    return group_size, bits
