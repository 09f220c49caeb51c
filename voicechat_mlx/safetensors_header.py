"""The header of a safetensors file, read without reading the tensors: names, shapes, dtypes, and whether all is there.

Layout: 8 bytes little-endian header length, a JSON header (name → dtype, shape, data_offsets), then the data.
"""

from __future__ import annotations

import json
import math
import operator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voicechat_mlx.errors import CheckpointError

LARGEST_HEADER = 100_000_000
"""Bytes; the format's own limit."""
BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
"""Of one number, by safetensors' spelling of the type; others are left for MLX to refuse."""


@dataclass(frozen=True, kw_only=True)
class TensorHeader:
    """One tensor as the file announces it."""

    dtype: str
    """safetensors' spelling: BF16, F16, F32, I32, I64, U32 …"""
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, TensorHeader]:
    """Every tensor of the file. Raises CheckpointError when it is missing, not safetensors, cut short or forged."""
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
        headers = {name: _tensor(entry) for name, entry in tensors.items()}
        places = {name: _place(entry) for name, entry in tensors.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise CheckpointError(f"{path} is not a safetensors file (a Git LFS pointer?); download it again") from None
    end = _end(path, headers, places)
    expected = 8 + length + end
    if size < expected:
        raise CheckpointError(f"{path} is truncated: {size} bytes of {expected}; download it again")
    if size > expected:
        raise CheckpointError(f"{path} is damaged: {size} bytes instead of {expected}; download it again")
    return headers


def _place(entry: dict[str, Any]) -> tuple[int, int]:
    """The bytes of one tensor behind the header: first, and one past the last."""
    start, end = (operator.index(offset) for offset in entry["data_offsets"])
    return start, end


def _end(path: Path, headers: dict[str, TensorHeader], places: dict[str, tuple[int, int]]) -> int:
    """Where the last tensor ends. Raises CheckpointError unless they lie one behind the other from 0 on, each whole."""
    end = 0
    for name, (start, stop) in sorted(places.items(), key=lambda item: item[1]):
        if start != end or stop < start:
            raise CheckpointError(
                f"{path} is damaged: {name} lies at bytes {start} to {stop}, expected from {end} on; download it again"
            )
        each = BYTES.get(headers[name].dtype)
        expected = math.prod(headers[name].shape) * each if each else stop - start
        if stop - start != expected:
            raise CheckpointError(
                f"{path} is damaged: {name} has {stop - start} bytes, expected {expected} for "
                f"{headers[name].dtype} {headers[name].shape}; download it again"
            )
        end = stop
    return end


def _tensor(entry: dict[str, Any]) -> TensorHeader:
    shape = tuple(operator.index(length) for length in entry["shape"])
    if min(shape, default=0) < 0:
        raise ValueError(shape)
    return TensorHeader(dtype=str(entry["dtype"]), shape=shape)
