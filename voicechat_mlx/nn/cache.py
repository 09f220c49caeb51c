"""What a causal stage remembers of its past, as small objects whose only mutable content is arrays.

A stage is `y = stage(x, cache)`: it reads the cache, replaces its arrays, and returns as many frames as came in.
Arrays keep their shape from step to step (key/value buffers grow in blocks, between steps), so a per-frame step
can be compiled with `arrays_of(cache)` as explicit inputs and outputs.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Self, cast

import mlx.core as mx

KV_BLOCK = 256
"""Key/value buffers grow by this many positions: 20 s of talk."""


class Cache:
    """Base of every cache: attributes are arrays, further caches, lists of caches, or plain constants.

    Arrays change from step to step; which caches and arrays there are does not, so each tree is walked once.
    """

    _layout: tuple[tuple[Cache, ...], tuple[tuple[Cache | None, str], ...]] | None = None
    """The caches inside this one, and the owner and name of every array; None is this cache, which holds no cycle."""

    def clone(self, known: dict[int, Cache] | None = None) -> Self:
        """An independent cache with the same past. Arrays are shared; see `KVCache.detach` for those changed in place.

        Parts that are one object here are one object there; `known` holds those already cloned.
        """
        known = {} if known is None else known
        if id(self) in known:
            return cast(Self, known[id(self)])
        twin = known[id(self)] = copy.copy(self)
        twin._layout = None
        for name, value in vars(self).items():
            if isinstance(value, Cache):
                setattr(twin, name, value.clone(known))
            elif isinstance(value, list):
                setattr(twin, name, [entry.clone(known) for entry in value])
        return twin


def parts_of(cache: Cache) -> list[Cache]:
    """The cache and all caches inside it, each once, in a fixed order."""
    return [cache, *_layout_of(cache)[0]]


def _layout_of(cache: Cache) -> tuple[tuple[Cache, ...], tuple[tuple[Cache | None, str], ...]]:
    if cache._layout is None:
        parts = _walk(cache)
        slots = [
            (None if part is cache else part, name)
            for part in parts
            for name, value in vars(part).items()
            if isinstance(value, mx.array)
        ]
        cache._layout = tuple(parts[1:]), tuple(slots)
    return cache._layout


def _walk(cache: Cache) -> list[Cache]:
    found: dict[int, Cache] = {}

    def visit(part: Cache) -> None:
        if id(part) in found:
            return
        found[id(part)] = part
        for value in vars(part).values():
            for entry in value if isinstance(value, list) else [value]:
                if isinstance(entry, Cache):
                    visit(entry)

    visit(cache)
    return list(found.values())


def arrays_of(cache: Cache) -> list[mx.array]:
    """Every array of a cache tree, in a fixed order."""
    return [getattr(owner or cache, name) for owner, name in _layout_of(cache)[1]]


def set_arrays(cache: Cache, arrays: Sequence[mx.array]) -> None:
    """Put arrays back in the order of `arrays_of`."""
    for (owner, name), value in zip(_layout_of(cache)[1], arrays, strict=True):
        setattr(owner or cache, name, value)


class Tail(Cache):
    """The last `length` steps (axis 1) of a stream, zeros before its beginning."""

    def __init__(self, batch: int, length: int, *shape: int, dtype: mx.Dtype) -> None:
        self.steps = mx.zeros((batch, length, *shape), dtype=dtype)

    def extend(self, x: mx.array) -> mx.array:
        """(B, T, …) → (B, length + T, …), and remember the newest `length` steps."""
        length = self.steps.shape[1]
        joined = mx.concatenate([self.steps, x], axis=1)
        self.steps = joined[:, joined.shape[1] - length :]
        return joined


class Timeline(Cache):
    """How many frames a network has done: `position` on the host, `count` the same number on the device.

    The layers of a network share one, so that a compiled step need not be rebuilt for every frame.
    Unusual: `count` is longer than the two numbers in it, since MLX keeps the smallest arrays far from a GPU.
    """

    def __init__(self) -> None:
        self.position = 0
        self.kept = 0
        """Frames at the beginning that a bounded history never forgets."""
        self.count = mx.zeros((16,), dtype=mx.int32)
        """`position` and `kept`."""

    def keep(self, frames: int) -> None:
        """Set `kept`, before the history is full."""
        self.kept = frames
        self.count = mx.array([self.position, frames, *[0] * 14], dtype=mx.int32)

    @property
    def offset(self) -> mx.array:
        """Frames done, on the device: () int32."""
        return self.count[0]


class KVCache(Cache):
    """Keys and values of an attention layer, (B, H, capacity, D), written at position modulo capacity.

    With a `window` W the capacity never passes W and old positions are overwritten; a frame sees itself and the
    W - 1 frames before it. Without one the buffer grows for ever, unless `limit_history` bounds it: then the timeline's
    `kept` positions at the beginning stay, and the rest of the window moves on.
    """

    def __init__(
        self,
        batch: int,
        heads: int,
        head_dim: int,
        window: int | None,
        dtype: mx.Dtype,
        timeline: Timeline | None = None,
    ) -> None:
        self.window = window
        self.keeps_beginning = False
        self.timeline = timeline or Timeline()
        self.keys = mx.zeros((batch, heads, 0, head_dim), dtype=dtype)
        self.values = mx.zeros((batch, heads, 0, head_dim), dtype=dtype)

    @property
    def position(self) -> int:
        """Frames done, on the host."""
        return self.timeline.position

    @property
    def offset(self) -> mx.array:
        """Frames done, on the device: () int32."""
        return self.timeline.offset

    @property
    def kept(self) -> int:
        """Positions at the beginning that are never overwritten."""
        return self.timeline.kept if self.keeps_beginning else 0

    @property
    def capacity(self) -> int:
        """Positions that the buffers hold."""
        return self.keys.shape[2]

    def reserve(self, steps: int) -> None:
        """Make room for `steps` more positions. Call once before a step; the only place where shapes change."""
        needed = -(-(self.position + steps) // KV_BLOCK) * KV_BLOCK
        needed = needed if self.window is None else min(needed, self.window)
        if needed > self.capacity:
            batch, heads, _, head_dim = self.keys.shape
            room = mx.zeros((batch, heads, needed - self.capacity, head_dim), dtype=self.keys.dtype)
            self.keys = mx.concatenate([self.keys, room], axis=2)
            self.values = mx.concatenate([self.values, room], axis=2)

    def detach(self) -> None:
        """Copy the buffers now, after `clone`: on CUDA a frame is written into them in place, as they lie in memory."""
        self.keys, self.values = mx.contiguous(self.keys + 0), mx.contiguous(self.values + 0)
        mx.eval(self.keys, self.values)

    def mask(self, steps: int) -> mx.array:
        """Which of the keys that `update` will return each of the next `steps` queries may see: (steps, keys) bool."""
        queries = self.offset + mx.arange(steps)[:, None]
        newest = self.offset - 1 if self._wraps(steps) else self.offset + (steps - 1)
        slots, kept = mx.arange(self.capacity)[None], self._kept_on_device()
        positions = newest - mx.remainder(newest - slots, self.capacity - kept)
        if self.keeps_beginning:
            ring = mx.where(positions < kept, -1, positions)
            positions = mx.where(slots < kept, mx.where(slots <= newest, slots, -1), ring)
        if self._wraps(steps):
            positions = mx.concatenate([positions, self.offset + mx.arange(steps)[None]], axis=1)
        visible = (positions >= 0) & (positions <= queries)
        if self.window is None:
            return visible
        near = positions > queries - (self.window - kept)
        return visible & (near | (positions < kept) if self.keeps_beginning else near)

    def update(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add (B, H, T, D) keys and values; return those to attend over, in the order that `mask(T)` describes."""
        steps = keys.shape[2]
        if self._wraps(steps):
            seen = mx.concatenate([self.keys, keys], axis=2), mx.concatenate([self.values, values], axis=2)
            newest = self._newest_in_slots(steps)
            self.keys, self.values = (mx.contiguous(mx.take(joined, newest, axis=2)) for joined in seen)
        else:
            start = self._next_slot()
            self.keys = mx.slice_update(self.keys, keys, start, axes=(2,))
            self.values = mx.slice_update(self.values, values, start, axes=(2,))
            seen = self.keys, self.values
        return seen

    def _next_slot(self) -> mx.array:
        """Where the next frame belongs, on the device: (1,)."""
        position = self.timeline.count[:1]
        if not self.keeps_beginning:
            return mx.remainder(position, self.capacity)
        kept = self._kept_on_device()
        return mx.where(position < kept, position, kept + mx.remainder(position - kept, self.capacity - kept))

    def _newest_in_slots(self, steps: int) -> mx.array:
        """For each slot, where its newest frame lies in (old slots, new steps) joined."""
        last, kept = self.position + steps - 1, self.kept
        moving = (last - (last - slot) % (self.capacity - kept) for slot in range(kept, self.capacity))
        positions = [*range(kept), *moving]
        joined = [
            slot if position < self.position else self.capacity + position - self.position
            for slot, position in enumerate(positions)
        ]
        return mx.array(joined, dtype=mx.int32)

    def _kept_on_device(self) -> mx.array | int:
        return self.timeline.count[1] if self.keeps_beginning else 0

    def _wraps(self, steps: int) -> bool:
        """Whether writing several steps at once would overwrite positions that some of them still see."""
        return steps > 1 and self.position + steps > self.capacity


def limit_history(cache: Cache, frames: int, kept: int) -> None:
    """Bound every buffer of a tree that has no window to its first `kept` positions and the latest `frames`."""
    for part in parts_of(cache):
        if isinstance(part, KVCache) and part.window is None:
            part.window, part.keeps_beginning = kept + frames, True
        if isinstance(part, Timeline):
            part.keep(kept)


def begin_step(cache: Cache, steps: int) -> None:
    """Reserve room in every key/value cache of a tree for the coming step."""
    for part in parts_of(cache):
        if isinstance(part, KVCache):
            part.reserve(steps)


def end_step(cache: Cache, steps: int) -> None:
    """Move every timeline of a tree past the step."""
    for part in parts_of(cache):
        if isinstance(part, Timeline):
            part.position += steps
            part.count = part.count + steps * mx.array([1, *[0] * 15], dtype=mx.int32)
