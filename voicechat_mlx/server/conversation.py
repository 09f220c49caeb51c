"""A client's requests and the worker's reports, brought together. No MLX, no network: it says what is to be sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import fields

from voicechat_mlx.errors import ToolError
from voicechat_mlx.server import messages, protocol
from voicechat_mlx.server.ids import Ids
from voicechat_mlx.server.messages import Message
from voicechat_mlx.server.protocol import ProtocolError, Request
from voicechat_mlx.server.reports import Failed, Report, Step, ToolRefused, ToolTaken, TurnCancelled
from voicechat_mlx.server.resampling import PcmReader
from voicechat_mlx.server.service import Service
from voicechat_mlx.server.settings import Settings
from voicechat_mlx.server.talk import Control, Talk
from voicechat_mlx.server.turns import Turns

PARAMETERS = {"input_rate": "audio.input.format", "output_rate": "audio.output.format", "seed": "voicechat.seed"}
"""Settings whose field of `session` has another name."""
MOST_UPDATES_BEFORE_GREETING = 16
"""Each is answered with the whole session once the model is loaded."""
REPORT_SECONDS = 1.0
"""Between two `voicechat.backlog`."""


class Conversation:
    """From `session.created` to `voicechat.finished`. The event loop's alone."""

    def __init__(
        self,
        *,
        id: str,
        service: Service,
        ids: Ids,
        say: Callable[[Message], None],
        listener: Callable[[Report], None],
    ) -> None:
        """`listener` is handed to the worker; what it gets belongs into `hear`, in the loop."""
        self._id, self._service, self._ids, self._say, self._listener = id, service, ids, say, listener
        self._settings = Settings()
        self._talk: Talk | None = None
        """None until there is something to hear."""
        self._turns: Turns | None = None
        self._reader: PcmReader | None = None
        self._greeted = False
        self._updates_before_greeting = 0
        self._uncommitted = False
        self._finishing = False
        self._last_backlog_report = 0.0
        self.is_over = False
        self.fault: str | None = None
        """What broke off the worker's side."""

    @property
    def backlog_seconds(self) -> float:
        """Audio that waits to be heard."""
        return self._talk.backlog_seconds if self._talk else 0.0

    @property
    def is_busy(self) -> bool:
        """Whether there is something left to compute."""
        return self._talk is not None and self._talk.is_busy

    def greet(self) -> list[Message]:
        """The model is loaded."""
        self._greeted = True
        described = self._described()
        updated = [messages.SessionUpdated(session=described)] * self._updates_before_greeting
        return [messages.SessionCreated(session=described), *updated]

    def pause(self, paused: bool) -> None:
        """Whether the client must read first."""
        if self._talk is not None:
            self._talk.pause(paused)

    def close(self) -> None:
        """The client is gone."""
        if self._talk is not None:
            self._talk.close()

    def obey(self, request: Request) -> bool:
        """Do what a client asks; whether it brought audio or asked for some. Raises ProtocolError."""
        if self._finishing and not isinstance(request, protocol.CancelResponse):
            raise ProtocolError("input_finished", "after voicechat.finish there is nothing to send")
        match request:
            case protocol.Append():
                self._append(request.pcm)
            case protocol.CreateResponse():
                if not self._started().ask_for_answer():
                    message = "an answer is under way; wait for response.done or cancel it"
                    raise ProtocolError("conversation_already_has_active_response", message)
            case protocol.Finish():
                self._finish(request.extra_seconds)
            case protocol.Commit():
                self._commit()
            case protocol.Clear():
                self._clear()
            case protocol.CancelResponse():
                self._cancel(request)
            case protocol.ToolOutput():
                self._give_result(request)
            case protocol.SessionUpdate():
                self._update(request)
        return isinstance(request, protocol.Append | protocol.CreateResponse | protocol.Finish)

    def hear(self, report: Report) -> None:
        """Tell the client what the worker did."""
        assert self._turns is not None
        match report:
            case Step():
                self._service.metrics.count_frames(report.frames, report.seconds)
                self._say_all(self._turns.take(report))
                self.is_over = report.totals is not None
            case TurnCancelled():
                ended = self._turns.end("cancelled")
                self._say_all(ended or [_nothing_to_cancel(report.event_id)])
            case ToolTaken():
                self._say_all(self._turns.tool_result(report.request))
            case ToolRefused():
                reason = report.error.reason if isinstance(report.error, ToolError) else "unknown_id"
                self._refuse_result(report.request, reason, str(report.error))
            case Failed():
                error = {"type": "server_error", "code": "internal_error", "message": report.message}
                self._say_all(self._turns.end("failed", error))
                self.fault = report.message

    def _started(self) -> Talk:
        if self._talk is None:
            self._turns = Turns(self._settings, self._ids, self._id)
            self._talk = self._service.worker.open(self._settings, self._listener)
        return self._talk

    def _append(self, pcm: bytes) -> None:
        talk, limits, seconds = self._started(), self._service.limits, len(pcm) / 2 / self._settings.input_rate
        if talk.backlog_seconds + seconds > limits.backlog_seconds:  # before any work is put into it
            self._service.metrics.shed_appends += 1
            message = f"{talk.backlog_seconds:.1f} s of audio wait, {limits.backlog_seconds:g} s may; this was dropped"
            raise ProtocolError("backlog_full", message, "audio")
        if self._reader is None:
            self._reader = PcmReader(self._settings.input_rate)
        talk.append(self._reader.read(pcm))
        self._uncommitted |= bool(pcm)
        self._service.metrics.input_seconds += seconds
        waiting, now = talk.backlog_seconds, time.monotonic()
        if waiting > limits.backlog_report_seconds and now - self._last_backlog_report >= REPORT_SECONDS:
            self._last_backlog_report = now
            self._say(messages.BacklogReport(seconds=round(waiting, 3), limit_seconds=limits.backlog_seconds))

    def _finish(self, extra_seconds: float) -> None:
        talk = self._started()
        self._finishing = True
        talk.finish(self._reader.finish() if self._reader else None, extra_seconds)

    def _commit(self) -> None:
        if not self._uncommitted or self._turns is None:
            raise ProtocolError("input_audio_buffer_commit_empty", "no audio was appended since the last commit")
        self._uncommitted = False
        self._say_all(self._turns.commit())

    def _clear(self) -> None:
        dropped = self._talk.clear() if self._talk else 0.0
        self._reader, self._uncommitted = None, False
        self._say(messages.Cleared(dropped_seconds=round(dropped, 4)))

    def _cancel(self, request: protocol.CancelResponse) -> None:
        open_id = self._turns.response_id if self._turns else None
        active = open_id is not None or (self._talk is not None and self._talk.is_answering)
        if self._talk is None or not active or request.response_id not in (None, open_id):
            raise ProtocolError("response_cancel_not_active", "there is no such answer to cancel", "response_id")
        self._control(self._talk, request)

    def _give_result(self, request: protocol.ToolOutput) -> None:
        if self._talk is None:
            self._refuse_result(request, "unknown_id", "nothing was called yet")
        else:
            self._control(self._talk, request)

    def _control(self, talk: Talk, request: Control) -> None:
        if not talk.control(request):
            raise ProtocolError("backlog_full", "too many requests wait; send them one by one")

    def _refuse_result(self, request: protocol.ToolOutput, reason: str, message: str) -> None:
        code = f"tool_result_{reason}"
        self._say(messages.error(code, message, param="item.call_id", event_id=request.event_id))

    def _update(self, request: protocol.SessionUpdate) -> None:
        if self._updates_before_greeting == MOST_UPDATES_BEFORE_GREETING and not self._greeted:
            raise ProtocolError("backlog_full", "too many updates wait for the model; send one when it is loaded")
        new = self._settings.updated(request.session, self._service.limits)
        if self._talk is not None and self._turns is not None:
            for field in fields(new):
                if field.name != "include" and getattr(new, field.name) != getattr(self._settings, field.name):
                    param = f"session.{PARAMETERS.get(field.name, field.name)}"
                    raise ProtocolError("session_started", f"{param} is fixed once audio has been appended", param)
            self._talk.settings = self._turns.settings = new
        self._settings = new
        if self._greeted:
            self._say(messages.SessionUpdated(session=self._described()))
        else:
            self._updates_before_greeting += 1

    def _described(self) -> dict[str, object]:
        service = self._service
        return self._settings.described(
            id=self._id,
            model=service.model_name,
            default_instructions=service.default_instructions,
            limits=service.limits,
        )

    def _say_all(self, sent: Iterable[Message]) -> None:
        for message in sent:
            self._say(message)


def _nothing_to_cancel(event_id: str | None) -> Message:
    return messages.error(
        "response_cancel_not_active", "the answer was over before it could be cancelled", event_id=event_id
    )
