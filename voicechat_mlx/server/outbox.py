"""What waits to be sent to one client, in order, and the close that comes last. Event loop only."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Close:
    """The end of a connection."""

    code: int
    reason: str


class Outbox:
    """`put` never waits; `room` does, for who must not run ahead of the client."""

    def __init__(self, limit: int) -> None:
        """`limit` in bytes. Nothing is handed out before `release`."""
        self._limit = limit
        self._texts: deque[str] = deque()
        self._close: Close | None = None
        self._held = True
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self.bytes = 0

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is taken."""
        return self._close is not None

    @property
    def is_full(self) -> bool:
        """Whether more than the limit waits."""
        return self.bytes > self._limit

    def put(self, text: str) -> None:
        """To be sent last."""
        if self._close is None:
            self._texts.append(text)
            self._count(len(text))

    def release(self, first: Sequence[str]) -> None:
        """Hand out from now on, these first."""
        if self._close is None:
            self._texts.extendleft(reversed(first))
            self._count(sum(map(len, first)))
        self._held = False
        self._changed.set()

    def close(self, close: Close, *, instead: str | None = None) -> None:
        """Nothing more will come. With `instead`, that is sent in place of all that waits."""
        if self._close is not None:
            return
        if instead is not None:
            self._texts.clear()
            self._texts.append(instead)
            self.bytes = len(instead)
        self._close, self._held = close, False
        self._count(0)

    async def get(self) -> str | Close:
        """The next text, or the end."""
        while self._held or not (self._texts or self._close):
            self._changed.clear()
            await self._changed.wait()
        if not self._texts:
            assert self._close is not None
            return self._close
        text = self._texts.popleft()
        self._count(-len(text))
        return text

    async def room(self) -> None:
        """Returns when the client has read most of what was sent."""
        await self._room.wait()

    def _count(self, added: int) -> None:
        self.bytes += added
        self._changed.set()
        if self.is_full and self._close is None:
            self._room.clear()
        else:
            self._room.set()
