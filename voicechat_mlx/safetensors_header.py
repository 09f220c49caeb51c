"""The header of a safetensors file, read without reading the tensors: names, shapes, dtypes, and whether all is there.

Layout: 8 bytes little-endian header length, a JSON header (name → dtype, shape, data_offsets), then the data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voicechat_mlx.errors import CheckpointError

LARGEST_HEADER = 100_000_000
"""Bytes; the format's own limit."""


@dataclass(frozen=True, kw_only=True)
class TensorHeader:
    """One tensor as the file announces it."""

    dtype: str
    """safetensors' spelling: BF16, F16, F32, I32, I64, U32 …"""
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, TensorHeader]:
    """Every tensor of the file. Raises CheckpointError when it is missing, not safetensors, or cut short."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            text = file.read(length) if length <= min(LARGEST_HEADER, size) else b""
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); download the checkpoint again") from None
    if size >= 8 and LARGEST_HEADER >= length > size - 8:
        raise CheckpointError(f"{path} is truncated: its header alone is {length} bytes; download it again")
    try:
        entries = json.loads(text)
        tensors = {name: entry for name, entry in entries.items() if name != "__metadata__"}
        end = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
        headers = {name: _tensor(entry) for name, entry in tensors.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise CheckpointError(f"{path} is not a safetensors file (a Git LFS pointer?); download it again") from None
    expected = 8 + length + end
    if size < expected:
        raise CheckpointError(f"{path} is truncated: {size} bytes of {expected}; download it again")
    return headers


def _tensor(entry: dict[str, Any]) -> TensorHeader:
    return TensorHeader(dtype=str(entry["dtype"]), shape=tuple(int(length) for length in entry["shape"]))
