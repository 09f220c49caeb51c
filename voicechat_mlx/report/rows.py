"""How far apart two sides are: each comparison is one `Row`, which knows whether it passes.

Unusual: a comparison never raises. A wrong shape or a number that is not finite is a row that fails, so the report is
whole and names the first layer that is wrong.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

Array = Any
"""An array of MLX, of PyTorch or of NumPy."""
Unit = Literal["RMS", "ids", "dB", "steps"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison of MLX with the twin."""

    layer: str
    shape: tuple[int, ...]
    """The twin's."""
    unit: Unit
    error: float
    """Relative RMS, number of ids that differ, dB from the signal down to the difference, or largest PCM difference."""
    tolerance: float | None
    """None: measured and published, not judged."""
    fault: str = ""
    """Why the two could not be compared at all."""
    section: str = ""
    run: str = ""

    @property
    def passed(self) -> bool:
        """Whether this comparison lets the report pass."""
        if self.fault:
            return False
        if self.tolerance is None:
            return True
        return self.error >= self.tolerance if self.unit == "dB" else self.error <= self.tolerance

    @property
    def badness(self) -> float:
        """Orders rows that measure the same: the larger, the worse."""
        return math.inf if self.fault else -self.error if self.unit == "dB" else self.error

    @property
    def measured(self) -> str:
        """The error in words."""
        if self.fault:
            return self.fault
        if self.unit == "ids":
            return f"{self.error:.0f} of {math.prod(self.shape)} differ"
        return f"{self.error:.1e}" if self.unit == "RMS" else f"{self.error:.2f} {self.unit}"

    @property
    def allowed(self) -> str:
        """The tolerance in words."""
        if self.tolerance is None:
            return "–"
        if self.unit == "ids":
            return f"≤ {self.tolerance:.0f} differ" if self.tolerance else "exact"
        limit = f"{self.tolerance:g}" if self.unit == "RMS" else f"{self.tolerance:g} {self.unit}"
        return f"≥ {limit}" if self.unit == "dB" else f"≤ {limit}"

    @property
    def verdict(self) -> str:
        """One word."""
        return "FAIL" if not self.passed else "measured" if self.tolerance is None else "ok"


def compare(layer: str, mlx: Array, twin: Array, tolerance: float | None) -> Row:
    """Relative RMS of the difference."""
    return _row(layer, mlx, twin, "RMS", tolerance, relative_rms)


def compare_ids(layer: str, mlx: Array, twin: Array, tolerance: float | None = 0.0) -> Row:
    """Ids or codes: at most `tolerance` of them may differ, by default none."""
    return _row(layer, mlx, twin, "ids", tolerance, lambda ours, theirs: float((ours != theirs).sum()))


def compare_snr(layer: str, mlx: Array, twin: Array, tolerance: float | None) -> Row:
    """Signal to noise in dB, the twin being the signal."""
    return _row(layer, mlx, twin, "dB", tolerance, lambda ours, theirs: -decibels(relative_rms(ours, theirs)))


def compare_pcm(layer: str, written: NDArray[np.int16], twin: Array, tolerance: float) -> Row:
    """int16 samples of a file against the twin's float audio: the largest difference, in steps of 2⁻¹⁵."""
    full_scale = np.clip(to_numpy(twin) * 2.0**15, -(2**15), 2**15 - 1)
    return _row(layer, written, full_scale, "steps", tolerance, lambda ours, theirs: float(np.abs(ours - theirs).max()))


def relative_rms(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> float:
    """rms(ours - theirs) / rms(theirs); where the twin is all zero, 0 if ours is too and infinity if not."""
    difference, size = (float(np.sqrt(np.mean(np.square(x)))) if x.size else 0.0 for x in (ours - theirs, theirs))
    if size == 0.0:
        return 0.0 if difference == 0.0 else math.inf
    return difference / size


def decibels(ratio: float) -> float:
    """Of an amplitude ratio; -inf for none."""
    return 20 * math.log10(ratio) if ratio > 0 else -math.inf


def to_numpy(x: Array) -> NDArray[np.float64]:
    """Any side's array, any dtype → float64, in which every float32 and every id is exact."""
    if isinstance(x, mx.array):
        x = np.array(x.astype(mx.float32) if mx.issubdtype(x.dtype, mx.floating) else x)
    elif hasattr(x, "detach"):  # a tensor of PyTorch
        x = x.detach().cpu().numpy()
    return np.asarray(x, dtype=np.float64)


def labelled(rows: Iterable[Row], *, section: str, run: str) -> Iterator[Row]:
    """The same rows, told where they belong."""
    return (dataclasses.replace(row, section=section, run=run) for row in rows)


def worst_of_each(rows: Iterable[Row]) -> list[Row]:
    """One row for each layer of each section: the worst of all runs, in the order of first appearance."""
    worst: dict[tuple[str, str, Unit], Row] = {}
    for row in rows:
        key = (row.section, row.layer, row.unit)
        if key not in worst or (not row.passed, row.badness) > (not worst[key].passed, worst[key].badness):
            worst[key] = row
    return list(worst.values())


def first_failure(rows: Iterable[Row]) -> Row | None:
    """Rows come in the order of the data flow, so this is where things went wrong."""
    return next((row for row in rows if not row.passed), None)


def _row(layer: str, mlx: Array, twin: Array, unit: Unit, tolerance: float | None, measure: Any) -> Row:
    ours, theirs = to_numpy(mlx), to_numpy(twin)
    fault = ""
    if ours.shape != theirs.shape:
        fault = f"shape {ours.shape}"
    elif not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        fault = "not finite"
    error = math.nan if fault else measure(ours, theirs)
    return Row(layer=layer, shape=theirs.shape, unit=unit, error=error, tolerance=tolerance, fault=fault)
