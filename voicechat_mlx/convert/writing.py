"""Reading, changing and writing the tensors of one shard, one tensor at a time.

Unusual: the safetensors file is laid out before its first number is known, so that each tensor goes straight to its
place. Within a file the wider types come first, which keeps every tensor aligned for programs that map the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path

import mlx.core as mx
import numpy as np

from voicechat_mlx.convert.shards import Shard, Unit, item_bytes, tensor_bytes
from voicechat_mlx.errors import CheckpointError
from voicechat_mlx.health import fault
from voicechat_mlx.names import canonical_name
from voicechat_mlx.safetensors_header import TensorHeader

HEADER_ALIGNMENT = 8


def write_shard(
    shard: Shard, tensors: MutableMapping[str, mx.array], place: Path, *, progress: Callable[[int], None]
) -> None:
    """Take the shard's tensors out of `tensors` and write them; `progress` is told the bytes written.

    Raises CheckpointError for a tensor of zeros, NaN or infinity.
    """
    header, offsets = lay_out(shard.tensors)
    with place.open("wb") as file:
        file.write(header)
        for unit in shard.units:
            made = converted(unit, tensors.pop(unit.source))
            for name, array in made.items():
                expected = shard.tensors[name].shape
                assert array.shape == expected, f"{name} became {array.shape} instead of {expected}"
                file.seek(len(header) + offsets[name])
                file.write(np.asarray(mx.contiguous(array).reshape(-1).view(mx.uint8)).data)
            del made
            mx.clear_cache()
            progress(unit.bytes)
        file.flush()
        os.fsync(file.fileno())


def converted(unit: Unit, tensor: mx.array) -> dict[str, mx.array]:
    """A tensor of the source → the tensors of the result, evaluated."""
    if unit.axes:
        tensor = mx.transpose(tensor, unit.axes)
    tensor = tensor.astype(unit.dtype)
    trouble = fault(canonical_name(unit.source) or unit.source, tensor)
    if trouble:
        raise CheckpointError(f"{unit.source} {trouble}; the source is damaged, download it again")
    if unit.packing:
        group_size, bits = unit.packing
        made = dict(zip(unit.outputs, mx.quantize(tensor, group_size, bits), strict=True))
    else:
        made = dict.fromkeys(unit.outputs, tensor)
    mx.eval(made)
    return made


def lay_out(tensors: Mapping[str, TensorHeader]) -> tuple[bytes, dict[str, int]]:
    """→ the file's beginning, and where behind it each tensor goes."""
    entries: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    offsets: dict[str, int] = {}
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item_bytes(item[1]), item[0])):
        offsets[name], end = end, end + tensor_bytes(tensor)
        entries[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (offsets[name], end)}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, offsets
