"""Run a session over a signal cut into pieces, and compare what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voicechat_mlx.conventions import Conventions
from voicechat_mlx.events import Audio, Done, Event, FunctionDelta, TextDelta, TranscriptDelta
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.session import Session

AUDIO_CLOSE = 1e-5
"""The split law: ids, codes and text are equal however the input is cut, audio is to this."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Talk:
    """Everything that a caller saw of one session."""

    events: list[Event]
    audio: NDArray[np.float32]
    text_ids: list[int]
    function_ids: list[int]
    codes: NDArray[np.int32]
    pieces: list[tuple[int, int]]
    """(frame, RNNT piece) in order."""

    def deltas(self, kind: type[Event]) -> list[tuple[int, str]]:
        """(frame, text) of one kind of delta."""
        return [(event.frame, event.text) for event in self.events if isinstance(event, kind)]

    def joined(self, kind: type[Event]) -> str:
        """The whole text of one channel."""
        return "".join(text for _, text in self.deltas(kind))


def pieces_of(pcm: NDArray[np.float32], cuts: Iterable[int]) -> list[NDArray[np.float32]]:
    """The signal cut at these places; a place given twice makes an empty piece."""
    return np.split(pcm, sorted(cuts))


def outcome(session: Session, events: Sequence[Event]) -> Talk:
    """What a finished session gave, events in order."""
    audio = [event.samples for event in events if isinstance(event, Audio)]
    return Talk(
        events=list(events),
        audio=np.concatenate([np.zeros(0, np.float32), *audio]),
        text_ids=session.text_tokens.tolist(),
        function_ids=session.function_tokens.tolist(),
        codes=session.audio_codes,
        pieces=list(zip(session.transcript.frames, session.transcript.ids, strict=True)),
    )


def talk(
    model: VoiceChat,
    pcm: NDArray[np.float32],
    cuts: Iterable[int] = (),
    *,
    system_prompt: str | None = "",
    seed: int = 0,
    conventions: str | Conventions = "mlx",
) -> Talk:
    """A whole conversation, the input cut at these places."""
    session = Session(model, system_prompt, seed, conventions)
    events: list[Event] = []
    for piece in pieces_of(pcm, cuts):
        events += session.push(piece)
    return outcome(session, [*events, *session.finish()])


def assert_same(found: Talk, expected: Talk) -> None:
    """Equal in everything but the grouping of audio into events; audio to `AUDIO_CLOSE`."""
    assert found.text_ids == expected.text_ids
    assert found.function_ids == expected.function_ids
    np.testing.assert_array_equal(found.codes, expected.codes)
    assert found.pieces == expected.pieces
    for kind in (TextDelta, FunctionDelta, TranscriptDelta):
        assert found.deltas(kind) == expected.deltas(kind)
    assert found.audio.shape == expected.audio.shape
    np.testing.assert_allclose(found.audio, expected.audio, rtol=0, atol=AUDIO_CLOSE)
    assert isinstance(found.events[-1], Done)
    assert found.events[-1] == expected.events[-1]


def assert_identical(found: Talk, expected: Talk) -> None:
    """Equal to the last bit, events and their grouping included."""
    assert [_bytes(event) for event in found.events] == [_bytes(event) for event in expected.events]
    assert_same(found, expected)


def _bytes(event: Event) -> tuple[Any, ...]:
    values = event.samples.tobytes() if isinstance(event, Audio) else getattr(event, "text", None)
    return type(event), event.frame, values
