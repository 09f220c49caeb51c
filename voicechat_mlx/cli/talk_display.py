"""Both sides as they speak: three lines that are rewritten on a terminal, a line for each phrase elsewhere."""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from voicechat_mlx.cli.streams import flush, printable, say
from voicechat_mlx.events import Delta, Event, FrameTiming, FunctionDelta, TextDelta, TranscriptDelta
from voicechat_mlx.timing import StageTiming

SIDES: dict[type[Event], str] = {TranscriptDelta: "user", TextDelta: "assistant", FunctionDelta: "function"}
PAUSE_FRAMES = 12
"""About a second without text ends a phrase."""
FRAME_MS = 80


class Display:
    """Keeps the texts and the times of a talk; how they are shown is up to the two kinds."""

    def __init__(self) -> None:
        self.texts = dict.fromkeys(SIDES.values(), "")
        self._seconds: list[float] = []
        self.delays = ""
        """What a talk with devices has to say about them, ahead of the computing time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def show(self, events: Iterable[Event]) -> None:
        """More has happened."""
        for event in events:
            if isinstance(event, FrameTiming):
                self._seconds.append(event.total_seconds)
            elif isinstance(event, Delta):
                side = SIDES[type(event)]
                self.texts[side] += event.text
                self.told(side, event.text, event.frame)
            self.passed(event.frame)

    @property
    def summary(self) -> str:
        """How fast it went, in one line; empty when nothing was computed."""
        if not self._seconds:
            return ""
        time = StageTiming.of(self._seconds)
        frames = f"{len(self._seconds)} frames of {FRAME_MS} ms, computed in {time.median * 1e3:.1f} ms each"
        return ", ".join(filter(None, [f"{frames} (19 of 20 within {time.p95 * 1e3:.1f} ms)", self.delays]))

    def told(self, side: str, text: str, frame: int) -> None:
        """More text of one side."""

    def passed(self, frame: int) -> None:
        """Time has come to this frame."""

    def end(self) -> None:
        """Nothing follows."""


class Script(Display):
    """A line for each phrase, once it is complete."""

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[str, tuple[str, int]] = {}
        """Side → its phrase so far, and the frame of its last piece."""

    def told(self, side: str, text: str, frame: int) -> None:
        """It belongs to the phrase that is open, unless that is long past."""
        self.passed(frame)
        before, _ = self._open.get(side, ("", 0))
        if before or text.strip():
            self._open[side] = (before + text, frame)

    def passed(self, frame: int) -> None:
        """Phrases whose side has paused are complete."""
        self._say(side for side, (_, last) in list(self._open.items()) if frame - last > PAUSE_FRAMES)

    def end(self) -> None:
        """What is open is complete."""
        self._say(list(self._open))

    def _say(self, sides: Iterable[str]) -> None:
        for side in sides:
            text, _ = self._open.pop(side)
            say(f"[{side}] {' '.join(text.split())}")
        flush()


class Screen(Display):
    """The latest words of each side in place; at the end the whole texts, as `generate` prints them."""

    def __init__(self) -> None:
        super().__init__()
        self._lines = 0

    def show(self, events: Iterable[Event]) -> None:
        """Rewrite the lines."""
        super().show(events)
        width = shutil.get_terminal_size().columns - 1
        sides = [side for side in self.texts if side != "function" or self.texts[side]]
        lines = [f"[{side}] " + _tail(self.texts[side], width - len(side) - 3) for side in sides]
        self._rewrite([*lines, f"{self._clock}  {self.summary}"[:width]])

    def end(self) -> None:
        """The whole texts take the lines' place."""
        self._rewrite([])
        say(f"[user] {self.texts['user']}")
        say(self.texts["assistant"])
        if self.texts["function"]:
            say(f"[function] {self.texts['function']}")

    @property
    def _clock(self) -> str:
        seconds = len(self._seconds) * FRAME_MS // 1000
        return f"{seconds // 60}:{seconds % 60:02d}"

    def _rewrite(self, lines: list[str]) -> None:
        up = f"\x1b[{self._lines}F" if self._lines else ""
        sys.stdout.write(up + "\x1b[J" + "".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
        self._lines = len(lines)


def _tail(text: str, width: int) -> str:
    """The end of a text, on one line of so many columns."""
    line = " ".join(printable(text).split())
    kept = 0
    for place in range(len(line) - 1, -1, -1):
        kept += 2 if unicodedata.east_asian_width(line[place]) in "WF" else 1
        if kept > width:
            return "…" + line[place + 2 :]
    return line
