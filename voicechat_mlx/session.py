"""A conversation: samples in, typed events out. Owns every cache; the model stays untouched.

There is one path. Pushes of any size are cut into the frames that they complete, and each frame takes the same step;
so how the input is split never changes the output. `generate` is a session fed big pushes.
Any thread may call a session, one at a time: everything is evaluated before a call returns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from voicechat_mlx.audio.wav import check_samples, sample_count
from voicechat_mlx.conventions import Conventions, find_conventions
from voicechat_mlx.errors import InputError, SessionError
from voicechat_mlx.events import (
    Audio,
    Cancelled,
    Delta,
    Done,
    Event,
    FrameTiming,
    FunctionDelta,
    TextDelta,
    TranscriptDelta,
)
from voicechat_mlx.frontend import Frontend
from voicechat_mlx.id_log import IdLog
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.perception.rnnt import Pieces
from voicechat_mlx.pipeline import Block, Pipeline
from voicechat_mlx.text import Detokenizer, RnntPieces
from voicechat_mlx.timing import FrameTimes, Profile
from voicechat_mlx.tools.exchange import OnTool, ToolExchange, ToolLimits
from voicechat_mlx.tools.protocol import Spelling, check_tools, offer, quote

BLOCK_FRAMES = 32
"""Frames that perception and codec take at once when a push is long: bounds memory, loses no speed."""
FINISHED = "is finished"
CANCELLED = "was cancelled"
BROKEN_OFF = "was broken off in the middle of a push, so its parts no longer agree"
HIGHEST_SEED = 2**64 - 1
LONGEST_SECONDS = 1e7
"""Four months: what is longer means for ever, and fits into MLX's whole numbers as little as it is reached."""


class Session:
    """`push(pcm)` as often as you like, then `finish()`; both return the events that the samples brought about."""

    def __init__(
        self,
        model: VoiceChat,
        system_prompt: str | None = None,
        seed: int = 0,
        conventions: str | Conventions = "mlx",
        *,
        profile: bool = False,
        limit_seconds: float | None = None,
        history_seconds: float = 600.0,
        lazy: bool = False,
        frame_timing: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        on_tool: OnTool | None = None,
        tool_limits: ToolLimits | None = None,
    ) -> None:
        """`system_prompt` None takes the checkpoint's default, "" means none. Raises InputError for wrong arguments.

        `profile` waits for every stage, so that `seconds` says where time goes on a GPU too, at the cost of overlap.
        After `limit_seconds`, rounded to whole frames and at least one, the session is `Done`. `frame_timing` adds a
        `FrameTiming` to every frame.

        `history_seconds` bounds what attention without a window of its own looks back on, besides the prompts at the
        beginning, so that an hour takes no more memory or time a frame than that.

        `lazy` puts the system prompt off to the first samples, or to calls of `prepare`, between which others may have
        their turn.

        `tools` are objects with name, description and parameters (a JSON schema). A `ToolCall` event tells of a call;
        its result is what `on_tool` returns, while the frame waits, or what `add_tool_result` is given later. Without
        `tools` and `on_tool` the function channel is left alone; with `on_tool` alone, any name may be called.
        """
        config = model.config
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed <= HIGHEST_SEED:
            raise InputError(f"seed is {quote(seed)}; give a whole number from 0 to 2^64 - 1")
        self._model, conventions = model, find_conventions(conventions)
        frame = config.frame_duration
        self._limit = None if limit_seconds is None else _frame_count("limit_seconds", limit_seconds, frame)
        prompt = config.default_system_prompt if system_prompt is None else system_prompt
        self._tools: ToolExchange | None = None
        if tools is not None or on_tool is not None:
            offered = check_tools(tools or [])
            names = None if tools is None else frozenset(tool["name"] for tool in offered)
            prompt = offer(prompt, offered, Spelling(model.tokenizer.special_tokens))
            self._tools = ToolExchange(config, model.tokenizer, names=names, on_tool=on_tool, limits=tool_limits)
        prompt_ids = model.tokenizer.prompt_ids(prompt, bos=config.bos_token_id, eos=config.eos_token_id)
        self._pipeline = Pipeline(
            model,
            prompt_ids,
            int(seed),
            conventions,
            history_frames=_frame_count("history_seconds", history_seconds, frame),
            profile=profile,
            lazy=lazy,
            writer=self._tools,
        )
        self._clock = self._pipeline.clock
        self._times, self._frame_timing = FrameTimes(self._clock), frame_timing
        self._frontend = Frontend(model, conventions, self._limit)
        self._voice: NDArray[np.float32] = np.zeros(0, np.float32)
        self._audio_frames = 0
        self._lead_in = model.codec.delay
        self._closed: str | None = None
        """Why nothing more may be pushed. Set while work goes on, so that an interruption leaves it set."""
        self._works, self._cancelling = False, False
        """Whether a push or a finish is under way, and whether it is to be the last."""
        self._silent_ids = config.silent_token_ids
        self._text, self._function = Detokenizer(model.tokenizer), Detokenizer(model.tokenizer)
        self._transcript = RnntPieces(model.rnnt_vocabulary)
        self._log = IdLog(config.tts_config.num_quantizers)
        self.prompt_tokens = len(prompt_ids)
        """Ids of the system prompt, the tools and its two markers included."""
        self.transcript = Pieces()
        """Every non-blank piece so far, special ones included."""
        self.frames = 0
        """Frames answered so far."""

    @property
    def is_open(self) -> bool:
        """Whether more may be pushed: not after `Done`, `Cancelled`, or a push that was interrupted."""
        return self._closed is None

    @property
    def seconds(self) -> dict[str, float]:
        """Wall-clock seconds by stage so far."""
        return dict(self._clock.seconds)

    @property
    def profile(self) -> Profile:
        """Median and 95th percentile of the seconds that a frame takes, by stage."""
        return self._times.profile

    @property
    def text_tokens(self) -> NDArray[np.int32]:
        """[frames] text ids so far. The ids and codes of a session take 132 bytes a frame."""
        return self._log.text

    @property
    def function_tokens(self) -> NDArray[np.int32]:
        """[frames] function ids so far, tool results that were written into the channel included."""
        return self._log.function

    @property
    def audio_codes(self) -> NDArray[np.int32]:
        """[frames, Q] codes so far, control codes replaced."""
        return self._log.codes

    def prepare(self, pieces: int | None = None) -> bool:
        """Of a `lazy` session: hear so many pieces (tokens, mostly) more of the prompt → whether all of it is heard."""
        self._require_open()
        return self._pipeline.prepare(pieces)

    def push(self, pcm: ArrayLike) -> list[Event]:
        """float32 samples [n] at 16 kHz, n ≥ 0 → what they brought about. Raises AudioError, SessionError.

        The push that reaches the limit ends with `Done`; what it holds beyond is not heard, and the session is closed.
        """
        self._require_open()
        samples = check_samples(pcm, allow_empty=True)
        if len(samples) == 0:
            return []
        events: list[Event] = []
        block = BLOCK_FRAMES * self._model.config.input_samples_per_frame
        with self._at_work():
            for begin in range(0, len(samples), block):
                with self._clock("frontend"):
                    rows = self._frontend.push(samples[begin : begin + block])
                if len(rows):
                    events += self._events(self._pipeline.advance(rows))
                if self._cancelling:
                    return events + self._cancel()
                if self.frames == self._limit:
                    return events + self._end("limit")
        self._closed = None
        return events

    def finish(self, extra_seconds: float = 0.0) -> list[Event]:
        """Hear that much silence, then answer what is left; ends with `Done`. Raises InputError, SessionError."""
        self._require_open()
        silence = np.zeros(sample_count(extra_seconds, self._model.config.input_sample_rate), np.float32)
        events = self.push(silence)
        if not self.is_open:
            return events  # the limit came first, or `cancel`
        with self._at_work():
            if self._frontend.samples == 0:
                return [*events, *self._end("finished")]
            with self._clock("frontend"):
                rows, last, padding_frame = self._frontend.finish()
            events += self._events(self._pipeline.advance(rows, last=last, padding_frame=padding_frame))
            return events + (self._cancel() if self._cancelling else self._end("finished" if last else "limit"))

    def cancel(self) -> list[Event]:
        """End now: nothing more is computed and the caches are given up. A session that is over stays as it is: [].

        From within `on_tool` it gives [], too, and the push that is under way ends with `Cancelled` as soon as it can.
        """
        if self._works:
            self._cancelling = True
            return []
        return self._cancel() if self._closed in (None, BROKEN_OFF) else []

    def add_tool_result(self, id: str, result: object) -> None:
        """The result of a `ToolCall`, anything that JSON can say; a text is one JSON string.

        It is written into the function channel from the next frame on that is computed, as soon as every call of the
        same list has its result and the model is not in the middle of another call. Raises SessionError after the end,
        and ToolError, with its `reason`, for a result that cannot be taken: the session goes on, and a call that was
        still waiting goes on waiting.
        """
        self._require_open()
        if self._tools is None:
            raise SessionError("this session has no tools; open it with tools=[…]")
        self._tools.add_result(id, result)

    def _cancel(self) -> list[Event]:
        self._release(CANCELLED)
        return [Cancelled(frame=self.frames)]

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        self._closed, self._works = BROKEN_OFF, True
        try:
            yield
        finally:
            self._works = False

    def _require_open(self) -> None:
        if self._works:
            raise SessionError("this session is in the middle of a push; call it when that has returned")
        if self._closed:
            raise SessionError(f"this session {self._closed}; open a new one to go on talking")

    def _end(self, reason: Literal["finished", "limit"]) -> list[Event]:
        """What was held back, then the end."""
        events: list[Event] = []
        if self.frames:
            events += self._say(self._pipeline.flush())
            events += _delta(TextDelta, self.frames - 1, self._text.finish())
            events += _delta(FunctionDelta, self.frames - 1, self._function.finish())
            events += self._tools.finish() if self._tools else []
        limit = f"has reached its limit of {self.frames * self._model.config.frame_duration:g} s"
        self._release(FINISHED if reason == "finished" else limit)
        return [*events, Done(frame=self.frames, reason=reason)]

    def _release(self, why: str) -> None:
        """Close, and give up everything that the talk needed to go on."""
        self._closed = why
        del self._pipeline, self._frontend

    def _events(self, block: Block) -> list[Event]:
        events: list[Event] = []
        pieces = block.pieces
        share = self._times.record(len(block.ids.text))
        for text, function in zip(block.ids.text.tolist(), block.ids.function.tolist(), strict=True):
            heard = (id for id, frame in zip(pieces.ids, pieces.frames, strict=True) if frame == self.frames)
            events += _delta(TranscriptDelta, self.frames, "".join(map(self._transcript.push, heard)))
            if text not in self._silent_ids:
                events += _delta(TextDelta, self.frames, self._text.push(text))
            if function not in self._silent_ids:
                events += _delta(FunctionDelta, self.frames, self._function.push(function))
            if self._tools:
                events += self._tools.take_events(self.frames)
            if self._frame_timing:
                events.append(FrameTiming(frame=self.frames, seconds=dict(share)))
            self.frames += 1
        self._log.append(block.ids)
        self.transcript += pieces
        return events + self._say(block.wave)

    def _say(self, wave: NDArray[np.float32]) -> list[Event]:
        """Collect decoded samples, leave out the void ones at the very beginning, hand over whole frames."""
        wave, self._lead_in = wave[self._lead_in :], 0
        self._voice = np.concatenate([self._voice, wave])
        size = self._model.codec.samples_per_frame
        count = len(self._voice) // size
        if count == 0:
            return []
        samples, self._voice = self._voice[: count * size], self._voice[count * size :]
        event = Audio(frame=self._audio_frames, samples=samples)
        self._audio_frames += count
        return [event]


def _frame_count(name: str, seconds: float, frame_seconds: float) -> int:
    """A length → whole frames, to the nearest, at least one. Raises InputError."""
    number = isinstance(seconds, int | float | np.integer | np.floating) and not isinstance(seconds, bool)
    if not (number and 0 < seconds < math.inf):
        raise InputError(f"{name} is {quote(seconds)}; give a number above 0")
    return max(1, round(min(seconds, LONGEST_SECONDS) / frame_seconds))


def _delta(kind: type[Delta], frame: int, text: str) -> list[Event]:
    return [kind(frame=frame, text=text)] if text else []
