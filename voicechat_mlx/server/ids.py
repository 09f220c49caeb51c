"""Names for what one connection sends: `event_1`, `item_1`, `resp_1`, …"""

from __future__ import annotations

from collections import Counter


class Ids:
    """Counts each kind by itself, so that the same talk has the same names again."""

    def __init__(self) -> None:
        self._given: Counter[str] = Counter()

    def next(self, kind: str) -> str:
        """The next name of that kind."""
        self._given[kind] += 1
        return f"{kind}_{self._given[kind]}"
