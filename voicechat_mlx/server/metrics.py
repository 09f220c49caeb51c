"""Counters of one server, and their Prometheus text. Each is changed by one thread only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

BUCKETS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""Seconds per frame; 0.08 is real time."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """What has happened since the start."""

    def __init__(self) -> None:
        self.sessions = 0
        self.errors: Counter[str] = Counter()
        """By code."""
        self.closes: Counter[int] = Counter()
        """Connections that the server closed, by close code."""
        self.shed_appends = 0
        self.input_seconds = 0.0
        """Audio that was appended and taken."""
        self._frames: list[int] = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0

    def count_frames(self, frames: int, seconds: float) -> None:
        """So many frames were computed in so many seconds."""
        each = seconds / max(1, frames)
        place = sum(each > bound for bound in BUCKETS)
        self._frames[place] += frames
        self._seconds += seconds

    def render(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Prometheus' text format. `gauges`: name → help and present value."""
        return "".join(f"{line}\n" for line in self._lines(gauges))

    def _lines(self, gauges: Mapping[str, tuple[str, float]]) -> Iterator[str]:
        for name, (about, value) in gauges.items():
            yield from _head(name, "gauge", about)
            yield f"voicechat_{name} {value:g}"
        for name, about, value in (
            ("sessions_total", "Connections that got a place.", self.sessions),
            ("appends_shed_total", "Appends dropped because the backlog was full.", self.shed_appends),
            ("input_audio_seconds_total", "Audio that was taken.", self.input_seconds),
        ):
            yield from _head(name, "counter", about)
            yield f"voicechat_{name} {value:.10g}"
        yield from _head("errors_total", "counter", "Error events by code.")
        yield from (f'voicechat_errors_total{{code="{code}"}} {count}' for code, count in sorted(self.errors.items()))
        yield from _head("closes_total", "counter", "Connections that the server closed, by close code.")
        yield from (f'voicechat_closes_total{{code="{code}"}} {count}' for code, count in sorted(self.closes.items()))
        yield from _head("frame_seconds", "histogram", "Computing time of a frame; a frame is 0.08 s of talk.")
        total = 0
        for bound, count in zip((*BUCKETS, "+Inf"), self._frames, strict=True):
            total += count
            yield f'voicechat_frame_seconds_bucket{{le="{bound}"}} {total}'
        yield f"voicechat_frame_seconds_sum {self._seconds:.10g}"
        yield f"voicechat_frame_seconds_count {total}"


def _head(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP voicechat_{name} {about}"
    yield f"# TYPE voicechat_{name} {kind}"
