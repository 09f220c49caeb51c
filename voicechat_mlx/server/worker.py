"""The one thread that owns MLX: loads the model, then gives every conversation one frame in turn.

Why one: a model fills the machine's compute units with a single frame already, so two threads would take turns anyway,
and MLX's streams belong to threads. Why one frame at a time: a client that floods gets its share and no more.
Controls come before frames, so they overtake queued audio.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable

import mlx.core as mx
import numpy as np

from voicechat_mlx.errors import SessionError, ToolError, VoiceChatError
from voicechat_mlx.events import Done, Event
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.server.limits import Limits
from voicechat_mlx.server.protocol import CancelResponse
from voicechat_mlx.server.reports import Failed, Report, Step, ToolRefused, ToolTaken, Totals, TurnCancelled
from voicechat_mlx.server.resampling import MODEL_INPUT_RATE
from voicechat_mlx.server.settings import Settings
from voicechat_mlx.server.talk import Control, Talk, frames_of
from voicechat_mlx.server.watch import Watch
from voicechat_mlx.session import Session

Work = Callable[[VoiceChat], None]
logger = logging.getLogger(__name__)

WARM_UP_FRAMES = 3
PROMPT_PIECES = 2
"""Of a system prompt in one turn: about as long as a frame."""
STOP_SECONDS = 5.0
"""For the frame in progress, and no longer: a model that is being loaded cannot be interrupted."""


class Worker:
    """Starts in a thread of its own; conversations come and go through `open`."""

    def __init__(self, load: Callable[[], VoiceChat], limits: Limits) -> None:
        self._load, self._limits = load, limits
        self._wake = threading.Condition()
        self._talks: list[_Conversation] = []
        self._turn = 0
        self._stopping = False
        self._on_loaded: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name="voicechat-mlx", daemon=True)
        self._served = threading.Event()
        self.rests_at_the_end = False
        """Whether the thread waits for the process to end. MLX asks for Python's lock when a thread that used it ends,
        after Python has let it go: were Python itself just ending, the process would be aborted."""
        self.model: VoiceChat | None = None
        """None until it is loaded."""
        self.failure: Exception | None = None
        """Why it could not be loaded."""

    @property
    def state(self) -> str:
        """`loading`, `ready` or `failed`."""
        return "failed" if self.failure else "ready" if self.model else "loading"

    @property
    def conversations(self) -> int:
        """That hold memory, or will when there is something to hear."""
        return len(self._talks)

    def start(self) -> None:
        """Load the model, then serve."""
        self._thread.start()

    def stop(self) -> None:
        """End all conversations and the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._served.wait(STOP_SECONDS)

    def when_loaded(self, callback: Callable[[], None]) -> None:
        """Call this once the model is loaded, or has failed to; maybe at once, maybe from the worker's thread."""
        with self._wake:
            waiting = self.state == "loading"
            if waiting:
                self._on_loaded.append(callback)
        if not waiting:
            callback()

    def open(self, settings: Settings, listener: Callable[[Report], None]) -> Talk:
        """A new conversation, begun when there is something to hear."""
        talk = Talk(settings, self._limits, self._wake, listener)
        with self._wake:
            self._talks.append(_Conversation(talk, self._limits))
        return talk

    def _run(self) -> None:
        self._serve()
        self._served.set()
        if self.rests_at_the_end:
            threading.Event().wait()

    def _serve(self) -> None:
        try:
            model = self._load()
            _warm_up(model)
        except Exception as error:  # whatever it is, everybody who waits must hear of it
            self._loaded(None, error)
            return
        self._loaded(model, None)
        while (work := self._next_work()) is not None:
            work(model)
            del work  # while this thread waits, it keeps nobody's connection alive
        for conversation in self._talks:
            conversation.close(False, model)
        mx.synchronize()  # MLX's own thread may still hold arrays of Python's, which a process that ends must not have

    def _loaded(self, model: VoiceChat | None, failure: Exception | None) -> None:
        with self._wake:
            self.model, self.failure = model, failure
            callbacks, self._on_loaded = self._on_loaded, []
        for callback in callbacks:
            callback()

    def _next_work(self) -> Work | None:
        """Waits for it. None when the server stops."""
        with self._wake:
            while not self._stopping:
                work = self._closing() or self._control() or self._frame()
                if work is not None:
                    return work
                self._wake.wait()
        return None

    def _closing(self) -> Work | None:
        for conversation in self._talks:
            if conversation.talk.closed:
                self._talks.remove(conversation)
                alone = not self._talks
                return functools.partial(conversation.close, alone)
        return None

    def _control(self) -> Work | None:
        for conversation in self._talks:
            control = conversation.talk.worker_control()
            if control is not None:
                return functools.partial(conversation.obey, control)
        return None

    def _frame(self) -> Work | None:
        count = len(self._talks)
        for place in range(self._turn, self._turn + count):
            conversation = self._talks[place % count]
            if not conversation.over and conversation.talk.worker_has_frame:
                self._turn = place % count + 1
                return conversation.advance
        return None


class _Conversation:
    """A talk and its session. Lives in the worker's thread alone."""

    def __init__(self, talk: Talk, limits: Limits) -> None:
        self.talk, self._limits = talk, limits
        self._session: Session | None = None
        self._watch: Watch | None = None
        self._heard = 0
        """Samples pushed."""
        self.over = False

    def close(self, clear_cache: bool, _: VoiceChat) -> None:
        """Let go of all memory. MLX keeps what is freed for the next frame; with nobody talking that is given back."""
        if self._session is not None:
            self._session.cancel()
        self._session = None
        if clear_cache:
            mx.clear_cache()

    def obey(self, control: Control, _: VoiceChat) -> None:
        """Cancel an answer, or take a tool's result."""
        if isinstance(control, CancelResponse):
            if self._watch is not None:
                self._watch.cancel()
            self.talk.listener(TurnCancelled(event_id=control.event_id))
            return
        try:
            if self._session is None:
                raise ToolError(f"there was no call {control.call_id[:80]!r}", "unknown_id")
            self._session.add_tool_result(control.call_id, control.result)
        except (ToolError, SessionError) as error:
            self.talk.listener(ToolRefused(request=control, error=error))
        else:
            self.talk.listener(ToolTaken(request=control))

    def advance(self, model: VoiceChat) -> None:
        """Open the session, hear a little of its prompt, or answer one frame. A fault ends this conversation alone."""
        try:
            if self._session is None:
                self._open(model)
            elif self._session.prepare(PROMPT_PIECES):
                self._step(model, self._session)
        except Exception as error:
            self.over = True
            logger.exception("a conversation broke off")
            known = isinstance(error, VoiceChatError)
            self.talk.listener(Failed(message=str(error) if known else f"{type(error).__name__}: {error}"))

    def _open(self, model: VoiceChat) -> None:
        settings, limits, config = self.talk.settings, self._limits, model.config
        self._session = Session(
            model,
            settings.instructions,
            settings.seed,
            limit_seconds=limits.session_seconds,
            lazy=True,
            tools=list(settings.tools) or None,
        )
        self._watch = Watch(
            bos=config.bos_token_id, eos=config.eos_token_id, quiet_frames=frames_of(limits.quiet_seconds)
        )
        self._look_ahead(model, self._session)

    def _step(self, model: VoiceChat, session: Session) -> None:
        samples, answer, last = self.talk.worker_take()
        assert self._watch is not None
        before, muted, started = session.frames, self._watch.muted, time.perf_counter()
        events: list[Event] = session.push(samples)
        self._heard += len(samples)
        if last and session.is_open:
            events += session.finish()
        seconds = time.perf_counter() - started
        frames = session.frames - before
        ends = self._watch.take(session.text_tokens[before:].tolist(), events)
        if answer is not None and (ends or answer.ends(self._watch, frames)):
            self.talk.worker_answered(answer)
            ends = True
        self._look_ahead(model, session)
        done = next((event for event in events if isinstance(event, Done)), None)
        self.talk.listener(
            Step(
                events=events,
                frames=frames,
                first_frame=before,
                muted=muted or self._watch.muted,  # sound comes a frame late
                ends=ends,
                seconds=seconds,
                backlog_seconds=self.talk.backlog_seconds,
                totals=self._totals(session, done.reason) if done else None,
            )
        )
        self.over = done is not None

    def _look_ahead(self, model: VoiceChat, session: Session) -> None:
        """Frame k rests on the samples up to 1280·k + 200; the first one on 201, which its beginning mirrors."""
        config = model.config
        boundary = config.input_samples_per_frame * session.frames + model.mel_filterbank.margin + (not session.frames)
        self.talk.worker_needs = max(boundary - self._heard, config.audio_config.preprocessor.hop_length)

    def _totals(self, session: Session, reason: str) -> Totals:
        include = self.talk.settings.include
        ids, codes = "ids" in include, "codes" in include
        return Totals(
            reason=reason,
            frames=session.frames,
            input_seconds=self._heard / MODEL_INPUT_RATE,
            text_tokens=session.text_tokens if ids else None,
            function_tokens=session.function_tokens if ids else None,
            audio_codes=session.audio_codes if codes else None,
        )


def _warm_up(model: VoiceChat) -> None:
    """The first frames compile and derive; nobody should wait for that in a talk."""
    session = Session(model)
    session.push(np.zeros(WARM_UP_FRAMES * model.config.input_samples_per_frame, np.float32))
    session.cancel()
