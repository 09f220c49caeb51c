"""A conversation: samples in, typed events out. Owns every cache; the model stays untouched.

There is one path. Pushes of any size are cut into the frames that they complete, and each frame takes the same step;
so how the input is split never changes the output. `generate` is a session fed big pushes.
Any thread may call a session, one at a time: everything is evaluated before a call returns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from voicechat_mlx.audio.mel import MelStream
from voicechat_mlx.audio.wav import check_samples
from voicechat_mlx.conventions import Conventions, find_conventions
from voicechat_mlx.errors import InputError, SessionError
from voicechat_mlx.events import Audio, Delta, Done, Event, FunctionDelta, TextDelta, TranscriptDelta
from voicechat_mlx.id_log import IdLog
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.perception.rnnt import Pieces
from voicechat_mlx.perception.subsampling import encoder_frames
from voicechat_mlx.pipeline import Block, Pipeline
from voicechat_mlx.text import Detokenizer, RnntPieces

BLOCK_FRAMES = 32
"""Frames that perception and codec take at once when a push is long: bounds memory, loses no speed."""
FINISHED = "is finished"
BROKEN_OFF = "was broken off in the middle of a push, so its parts no longer agree"
HIGHEST_SEED = 2**64 - 1


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
    ) -> None:
        """`system_prompt` None takes the checkpoint's default, "" means none. Raises InputError for wrong arguments.

        `profile` waits for every stage, so that `seconds` says where time goes on a GPU too, at the cost of overlap.
        """
        config = model.config
        if not isinstance(seed, int | np.integer) or not 0 <= seed <= HIGHEST_SEED:
            raise InputError(f"seed is {str(seed)[:40]!r}; give a whole number from 0 to 2^64 - 1")
        self._model, self._conventions = model, find_conventions(conventions)
        prompt = config.default_system_prompt if system_prompt is None else system_prompt
        prompt_ids = model.tokenizer.prompt_ids(prompt, bos=config.bos_token_id, eos=config.eos_token_id)
        self._pipeline = Pipeline(model, prompt_ids, int(seed), self._conventions, profile=profile)
        self._mel = MelStream(model.mel_filterbank, self._conventions)
        self._rows: NDArray[np.float32] = np.zeros((0, config.audio_config.preprocessor.features), np.float32)
        self._rows_seen = 0
        self._voice: NDArray[np.float32] = np.zeros(0, np.float32)
        self._audio_frames = 0
        self._lead_in = model.codec.delay
        self._closed: str | None = None
        """Why nothing more may be pushed. Set while work goes on, so that an interruption leaves it set."""
        self._silent_ids = config.silent_token_ids
        self._text, self._function = Detokenizer(model.tokenizer), Detokenizer(model.tokenizer)
        self._transcript = RnntPieces(model.rnnt_vocabulary)
        self._log = IdLog(config.tts_config.num_quantizers)
        self.transcript = Pieces()
        """Every non-blank piece so far, special ones included."""
        self.frames = 0
        """Frames answered so far."""

    @property
    def seconds(self) -> dict[str, float]:
        """Wall-clock seconds by stage so far."""
        return dict(self._pipeline.clock.seconds)

    @property
    def text_tokens(self) -> NDArray[np.int32]:
        """[frames] text ids so far. The ids and codes of a session take 132 bytes a frame."""
        return self._log.text

    @property
    def function_tokens(self) -> NDArray[np.int32]:
        """[frames] function ids so far."""
        return self._log.function

    @property
    def audio_codes(self) -> NDArray[np.int32]:
        """[frames, Q] codes so far, control codes replaced."""
        return self._log.codes

    def push(self, pcm: ArrayLike) -> list[Event]:
        """float32 samples [n] at 16 kHz, n ≥ 0 → what they brought about. Raises AudioError, SessionError."""
        self._require_open()
        samples = check_samples(pcm, allow_empty=True)
        if len(samples) == 0:
            return []
        events: list[Event] = []
        block = BLOCK_FRAMES * self._model.config.input_samples_per_frame
        self._closed = BROKEN_OFF
        for begin in range(0, len(samples), block):
            with self._pipeline.clock("frontend"):
                self._take(self._mel.push(samples[begin : begin + block]))
                rows = self._complete_rows()
            if len(rows):
                events += self._events(self._pipeline.advance(rows))
        self._closed = None
        return events

    def finish(self) -> list[Event]:
        """No more samples: answer what is left, adding no silence."""
        self._require_open()
        self._closed = FINISHED
        if self._mel.samples == 0:
            return [Done(frame=0)]
        self._take(self._mel.finish())
        rows = self._rows if self._conventions.keeps_last_mel_frame else self._rows[:-1]
        block = self._pipeline.advance(rows, last=True, padding_frame=self._ends_with_padding_frame())
        events = self._events(block) + self._say(self._pipeline.flush())
        events += _delta(TextDelta, self.frames - 1, self._text.finish())
        events += _delta(FunctionDelta, self.frames - 1, self._function.finish())
        return [*events, Done(frame=self.frames)]

    def _require_open(self) -> None:
        if self._closed:
            raise SessionError(f"this session {self._closed}; open a new one to go on talking")

    def _take(self, rows: NDArray[np.float32]) -> None:
        self._rows = np.concatenate([self._rows, rows])
        self._rows_seen += len(rows)

    def _complete_rows(self) -> NDArray[np.float32]:
        """The mel rows of whole frames: one for the first frame, then one per subsampling factor."""
        factor = self._model.config.audio_config.encoder.subsampling_factor
        taken = self._rows_seen - len(self._rows)
        target = (self._rows_seen - 1) // factor * factor + 1 if self._rows_seen else 0
        rows, self._rows = self._rows[: target - taken], self._rows[target - taken :]
        return rows

    def _ends_with_padding_frame(self) -> bool:
        """Whether the mel row that the convention drops would have completed one more frame."""
        if self._conventions.keeps_last_mel_frame:
            return False
        return encoder_frames(self._rows_seen) > encoder_frames(self._rows_seen - 1)

    def _events(self, block: Block) -> list[Event]:
        events: list[Event] = []
        pieces = block.pieces
        for text, function in zip(block.ids.text.tolist(), block.ids.function.tolist(), strict=True):
            heard = (id for id, frame in zip(pieces.ids, pieces.frames, strict=True) if frame == self.frames)
            events += _delta(TranscriptDelta, self.frames, "".join(map(self._transcript.push, heard)))
            if text not in self._silent_ids:
                events += _delta(TextDelta, self.frames, self._text.push(text))
            if function not in self._silent_ids:
                events += _delta(FunctionDelta, self.frames, self._function.push(function))
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


def _delta(kind: type[Delta], frame: int, text: str) -> list[Event]:
    return [kind(frame=frame, text=text)] if text else []
