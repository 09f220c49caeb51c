"""WAV containers as writers really leave them → the plain order that every decoder understands.

Streaming writers do not know the length beforehand and leave 0 or 0xFFFFFFFF as the data size; others put the
format after the data or forget the pad byte behind an odd chunk. Only the container is touched here: sample
formats are left to the decoder. Layout: "Multimedia Programming Interface and Data Specifications 1.0", 1991.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator

logger = logging.getLogger(__name__)

_STREAMED_FROM = 0x7FFF0000
"""Data sizes from here on (2 GiB and more) are place-holders of writers that could not seek back."""


def canonical_wav(raw: bytes, name: str) -> bytes:
    """The bytes of a RIFF WAVE file → the same with `fmt `, `fact`, `data` in this order and true sizes.

    Anything else, also a RIFF file without those chunks, is returned as it is for the decoder to judge.
    `name` is used in a warning when the data end before the header says.
    """
    if raw[:4] != b"RIFF" or raw[8:12] != b"WAVE":
        return raw
    kept: dict[bytes, bytes] = {}
    for identifier, declared, body in _chunks(raw):
        if identifier in (b"fmt ", b"fact", b"data"):
            kept.setdefault(identifier, body)
        if identifier == b"data" and len(body) < declared < _STREAMED_FROM:
            logger.warning(
                "%s ends early: its header announces %d bytes of samples and %d are there; using those",
                name,
                declared,
                len(body),
            )
    if b"fmt " not in kept or b"data" not in kept:
        return raw
    ordered = [(identifier, kept[identifier]) for identifier in (b"fmt ", b"fact", b"data") if identifier in kept]
    content = b"WAVE" + b"".join(_chunk(identifier, body) for identifier, body in ordered)
    return _chunk(b"RIFF", content)


def _chunks(raw: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """(identifier, size in the header, body) of each chunk; bodies end with the file at the latest."""
    start = 12
    while start + 8 <= len(raw):
        identifier, declared = struct.unpack_from("<4sI", raw, start)
        start += 8
        unknown_size = declared == 0 and not _is_chunk_list(raw, start)
        end = len(raw) if identifier == b"data" and unknown_size else min(start + declared, len(raw))
        yield identifier, declared, raw[start:end]
        start = _behind(raw, end, declared)


def _is_chunk_list(raw: bytes, start: int) -> bool:
    """Whether chunks with readable names fill the file exactly from `start` on (also: nothing follows).

    Behind a data size of 0 this tells an empty file with trailing notes from a stream of samples.
    """
    while start < len(raw):
        if start + 8 > len(raw):
            return False
        identifier, declared = struct.unpack_from("<4sI", raw, start)
        if not all(32 <= letter < 127 for letter in identifier):
            return False
        start = _behind(raw, start + 8 + declared, declared)
    return start == len(raw)


def _behind(raw: bytes, end: int, declared: int) -> int:
    """Where the next chunk starts: odd sizes are followed by a zero byte, which some writers forget."""
    return end + 1 if declared % 2 and raw[end : end + 1] == b"\0" else end


def _chunk(identifier: bytes, body: bytes) -> bytes:
    return struct.pack("<4sI", identifier, min(len(body), 0xFFFFFFFF)) + body + b"\0" * (len(body) % 2)
