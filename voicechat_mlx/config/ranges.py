"""Which numbers of config.json can be meant: a size is 1 or more, a float is finite, a few fields say more.

Unusual: every range has two ends, so that a damaged file is refused before anything of its size is made.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LARGEST_FLOAT = 3.4e38
"""What float32 still holds."""
SMALLEST_FLOAT = 1.2e-38
"""What float32 holds without losing digits."""


@dataclass(frozen=True)
class Range:
    """From `low` to `high`, both included."""

    low: float
    high: float
    words: str

    def holds(self, value: float) -> bool:
        """NaN is in no range."""
        return self.low <= value <= self.high


SIZE = Range(1, 10**7, "from 1 to 10000000")
INDEX = Range(0, 10**7, "from 0 to 10000000")
SMALL = Range(1, 1000, "from 1 to 1000")
"""Layers, stages, rounds: each costs a module or a pass."""
SMALL_OR_NONE = Range(0, 1000, "from 0 to 1000")
FREQUENCIES = Range(1, 2**16, "from 1 to 65536")
"""Bins and filters, whose product is a matrix."""
FINITE = Range(-LARGEST_FLOAT, LARGEST_FLOAT, f"finite, at most {LARGEST_FLOAT:g} either way")
POSITIVE = Range(SMALLEST_FLOAT, LARGEST_FLOAT, f"from {SMALLEST_FLOAT:g} to {LARGEST_FLOAT:g}")
EXPONENT = Range(-80, 80, "from -80 to 80")
"""What float32 can take the exponential of, either way."""
NOT_NEGATIVE = Range(0, LARGEST_FLOAT, f"from 0 to {LARGEST_FLOAT:g}")
NOT_NEGATIVE_OR_INFINITE = Range(0, math.inf, "0 or more")
SHARE = Range(SMALLEST_FLOAT, 1, "above 0 and at most 1")
SECONDS = Range(1e-4, 3600, "from 0.0001 to 3600 seconds")


def within(range: Range, default: Any) -> Any:
    """A dataclass field whose number, or each of whose numbers, lies in `range`."""
    return dataclasses.field(default=default, metadata={"range": range})


def out_of_range(metadata: Mapping[str, Any], value: Any) -> str | None:
    """What a converted value of the field must be, when it or a part of it is not; a field may say which range."""
    if "only" in metadata:
        return None
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, int | float) and not isinstance(number, bool):
            range = metadata.get("range", SIZE if isinstance(number, int) else FINITE)
            if not range.holds(number):
                return f"must be {range.words}, found {number!r}"
    return None
