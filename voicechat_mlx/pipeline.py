"""From mel rows to answered frames: perception, transcript, the duplex loop and the codec, with all their caches.

Two ways, one meaning. Compiled (on a GPU), a frame is queued from mel rows to samples and the host looks once, at the
end. Otherwise, and for the first frame and what the end brings, perception and codec take many frames at once, and each
stage is waited for and timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from voicechat_mlx.clock import StageClock
from voicechat_mlx.codec.codec import CodecCache
from voicechat_mlx.conventions import Conventions
from voicechat_mlx.duplex import FREE, DuplexState, first_codes, hear_prompt, speak, start, think
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.nn.cache import Cache, arrays_of
from voicechat_mlx.nn.worker import settle_worker
from voicechat_mlx.perception.conformer import EncoderCache
from voicechat_mlx.perception.rnnt import Pieces, RnntCache

HISTORY_FRAMES = 7500
"""Ten minutes, as far as the talker's own windows reach at the real size."""


@dataclass(frozen=True, eq=False)
class Ids:
    """The loop's choices for F frames: 132 bytes a frame."""

    text: NDArray[np.int32]
    """[F]."""
    function: NDArray[np.int32]
    """[F]."""
    codes: NDArray[np.int32]
    """[F, Q], control codes replaced."""


@dataclass(frozen=True, eq=False)
class Block:
    """What F frames brought."""

    ids: Ids
    pieces: Pieces
    """Transcript pieces with their frames."""
    wave: NDArray[np.float32]
    """[1764·F]: the stream's next samples, `codec.delay` late."""


class Writer(Protocol):
    """Reads the function channel frame by frame and may write into it."""

    def next_id(self) -> int | None:
        """The function id of the next frame; None leaves it to the model."""

    def read(self, id: int) -> None:
        """The function id that the frame came to."""


class Conversation(Cache):
    """The past of every network in one conversation."""

    def __init__(self, encoder: EncoderCache, rnnt: RnntCache, duplex: DuplexState, codec: CodecCache) -> None:
        self.encoder = encoder
        self.rnnt = rnnt
        self.duplex = duplex
        self.codec = codec


class Pipeline:
    """One conversation's networks at work. Rows must come in whole frames: one for the first, then eight for each."""

    def __init__(
        self,
        model: VoiceChat,
        prompt_ids: Sequence[int],
        seed: int,
        conventions: Conventions,
        *,
        history_frames: int = HISTORY_FRAMES,
        profile: bool = False,
        lazy: bool = False,
        writer: Writer | None = None,
    ) -> None:
        """`profile` waits for every stage also where a frame could be queued as a whole: each then has its own time.

        `lazy` leaves the prompt to `prepare`, or to the first frame. With a `writer` the host looks at every frame
        before it begins the next.
        """
        settle_worker()
        self._model, self._conventions, self._writer = model, conventions, writer
        self._whole_frames = model.run.compiled and not profile
        self._factor = model.config.audio_config.encoder.subsampling_factor
        self._frames = 0
        self.clock = StageClock()
        encoder = model.perception.encoder.make_cache(1, model.activations)
        with self._stage("prompt") as done:
            duplex = start(model, prompt_ids, seed, conventions, history_frames)
            self._past = Conversation(encoder, model.rnnt.make_cache(), duplex, model.codec.make_cache())
            self._prompt = hear_prompt(model, duplex, prompt_ids)
            done += arrays_of(self._past)
        self.is_prepared = False
        """Whether the system prompt is heard."""
        if not lazy:
            self.prepare()

    def prepare(self, pieces: int | None = None) -> bool:
        """Hear so many pieces more of the system prompt, or all that is left → whether it is heard now."""
        if not self.is_prepared:
            with self._stage("prompt") as done:
                heard = sum(1 for _ in islice(self._prompt, pieces))
                done += arrays_of(self._past)
            self.is_prepared = pieces is None or heard < pieces
        return self.is_prepared

    def advance(self, rows: NDArray[np.float32], *, last: bool = False, padding_frame: bool = False) -> Block:
        """Mel rows [T, features] → the frames that they complete.

        `last` ends the stream; a frame of padding, which the transcript does not hear, may follow.
        """
        self.prepare()
        mel = mx.array(rows)[None]
        if last or not self._whole_frames:
            return self._by_stages(mel, last=last, padding_frame=padding_frame)
        first = 0 if self._frames else 1  # of the stream, a frame of one row and a path of its own
        blocks = [self._by_stages(mel[:, :first], last=False, padding_frame=False)] if first else []
        return _joined([*blocks, self._by_frames(mel[:, first:])] if first < mel.shape[1] else blocks)

    def flush(self) -> NDArray[np.float32]:
        """The last `codec.delay` samples of the stream."""
        return np.asarray(self._model.codec.flush(self._past.codec))[0]

    def _by_frames(self, mel: mx.array) -> Block:
        """One frame queued after another."""
        found: list[tuple[mx.array, mx.array, mx.array, mx.array]] = []
        with self.clock("frames"):
            for rows in mx.split(mel, mel.shape[1] // self._factor, axis=1):
                found.append(self._queued(rows))
                if self._writer is not None:
                    mx.eval(found[-1])  # all of the frame, so that one wait is enough
                    self._read(found[-1][0])
            mx.eval(found)
        ids, codes, pieces, wave = ([np.asarray(part) for part in parts] for parts in zip(*found, strict=True))
        heard = Pieces()
        for row in pieces:
            heard += self._model.rnnt.pieces(row, self._frames)
            self._frames += 1
        text, function = np.stack(ids, axis=1).astype(np.int32)
        return Block(Ids(text, function, np.stack(codes)), heard, np.concatenate([part[0] for part in wave]))

    def _queued(self, mel: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """The mel rows (1, 8, features) of one frame → ids (2,), codes (Q,), pieces (max_symbols,), samples (1, 1764).

        The device begins with a stage while the host prepares the next.
        """
        run, past = self._model.run, self._past
        projected, encoded = run(hear, past.encoder, mel)
        mx.async_eval(projected, encoded, arrays_of(past.encoder))
        ids = run(think, past.duplex.thinking, projected, *self._written())
        mx.async_eval(ids, arrays_of(past.duplex.thinking))
        codes = run(speak, past.duplex.speaking, past.duplex.thinking.text)
        mx.async_eval(codes, arrays_of(past.duplex.speaking))
        pieces = run(transcribe, past.rnnt, encoded)
        wave = run(sound, past.codec, codes[None, None])
        mx.async_eval(pieces, wave, arrays_of(past.rnnt), arrays_of(past.codec))
        return ids, codes, pieces, wave

    def _by_stages(self, mel: mx.array, *, last: bool, padding_frame: bool) -> Block:
        """All frames through perception, one by one through the loop, all through the codec."""
        model, past = self._model, self._past
        with self._stage("perception") as done:
            projected, encoded = self._perceived(mel, last=last, padding_frame=padding_frame)
            done += [projected, encoded, *arrays_of(past.encoder)]
        with self._stage("rnnt") as done:
            pieces = model.rnnt.decode(encoded, past.rnnt, self._frames)
            done += arrays_of(past.rnnt)
        ids, codes = [], []
        for audio in mx.split(projected, projected.shape[1], axis=1):
            with self._stage("llm") as done:
                ids.append(model.run(think, past.duplex.thinking, audio, *self._written()))
                done += [ids[-1], *arrays_of(past.duplex.thinking)]
            self._read(ids[-1])
            with self._stage("talker") as done:
                codes.append(self._spoken(past.duplex))
                done += [codes[-1], *arrays_of(past.duplex.speaking)]
            self._frames += 1
        with self._stage("codec") as done:
            run = model.run if len(codes) == 1 else model.run.plain
            wave = run(sound, past.codec, mx.stack(codes)[None])
            done += [wave, *arrays_of(past.codec)]
        text, function = np.ascontiguousarray(np.asarray(mx.stack(ids)).T.astype(np.int32))
        return Block(Ids(text, function, np.stack([*map(np.asarray, codes)])), pieces, np.asarray(wave)[0])

    def _perceived(self, mel: mx.array, *, last: bool, padding_frame: bool) -> tuple[mx.array, mx.array]:
        """Projected frames for the loop, and encoded ones in float32 for the transcript, without the padding frame."""
        run, cache = self._model.run, self._past.encoder
        if mel.shape[1] == self._factor and not last:
            return run(hear, cache, mel)
        found: tuple[mx.array, mx.array] = run.plain(
            partial(hear_many, last=last, padding_frame=padding_frame), cache, mel
        )
        return found

    def _spoken(self, state: DuplexState) -> mx.array:
        if not state.begun:
            state.begun = True
            return first_codes(self._model, self._conventions)
        codes: mx.array = self._model.run(speak, state.speaking, state.thinking.text)
        return codes

    def _written(self) -> tuple[mx.array, ...]:
        """What a frame takes in besides its sound: nothing, or the id that the writer puts on the function channel."""
        if self._writer is None:
            return ()
        id = self._writer.next_id()
        return (mx.array([[FREE if id is None else id]], dtype=mx.uint32),)

    def _read(self, ids: mx.array) -> None:
        if self._writer is not None:
            self._writer.read(int(np.asarray(ids)[1]))

    @contextmanager
    def _stage(self, name: str) -> Iterator[list[mx.array]]:
        """Time a stage; what the body puts into the list is evaluated in it."""
        with self.clock(name):
            done: list[mx.array] = []
            yield done
            mx.eval(done)


def _joined(blocks: Sequence[Block]) -> Block:
    """One after another."""
    if len(blocks) == 1:
        return blocks[0]
    ids = (
        np.concatenate(parts)
        for parts in zip(*((b.ids.text, b.ids.function, b.ids.codes) for b in blocks), strict=True)
    )
    pieces = Pieces()
    for block in blocks:
        pieces += block.pieces
    return Block(Ids(*ids), pieces, np.concatenate([block.wave for block in blocks]))


def hear(model: VoiceChat, cache: EncoderCache, mel: mx.array) -> tuple[mx.array, mx.array]:
    """Mel rows (1, T, features) → projected (1, F, hidden), and encoded (1, F, d_model) in float32."""
    projected, encoded = model.perception(mel, cache)
    return projected, encoded.astype(mx.float32)


def hear_many(
    model: VoiceChat, cache: EncoderCache, mel: mx.array, *, last: bool, padding_frame: bool
) -> tuple[mx.array, mx.array]:
    """Any number of rows (1, T, features), perhaps the last and a padding frame → the same as `hear`, but for padding.

    The padding frame is projected for the loop and not encoded for the transcript.
    """
    encoder = model.perception.encoder
    encoded = encoder(mel, cache, last=last)
    everything = mx.concatenate([encoded, encoder.padding_frame(cache)], axis=1) if padding_frame else encoded
    return model.perception.proj(everything), encoded.astype(mx.float32)


def transcribe(model: VoiceChat, cache: RnntCache, encoded: mx.array) -> mx.array:
    """Encoded (1, 1, d_model) in float32 → the frame's pieces (max_symbols,)."""
    return model.rnnt.decode_frame(encoded, cache)


def sound(model: VoiceChat, cache: CodecCache, codes: mx.array) -> mx.array:
    """Codes (1, F, Q) → the stream's next samples (1, 1764·F)."""
    return model.codec.decode_stream(codes, cache)
