"""From mel rows to answered frames: perception, transcript, the duplex loop and the codec, with all their caches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from voicechat_mlx.clock import StageClock
from voicechat_mlx.codec.codec import CodecCache
from voicechat_mlx.conventions import Conventions
from voicechat_mlx.duplex import Duplex
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.nn.cache import arrays_of
from voicechat_mlx.perception.conformer import EncoderCache
from voicechat_mlx.perception.rnnt import Pieces, RnntCache


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


class Pipeline:
    """One conversation's networks at work. Rows must come in whole frames: one for the first, then eight for each."""

    def __init__(
        self, model: VoiceChat, prompt_ids: Sequence[int], seed: int, conventions: Conventions, *, profile: bool = False
    ) -> None:
        """`profile` waits for each stage also where they could overlap, so that each has a time of its own."""
        self._model = model
        self._waits = profile or not model.run.compiled
        self.clock = StageClock()
        with self._stage("prompt") as done:
            self._duplex = Duplex(model, prompt_ids, seed, conventions)
            done += self._duplex.arrays()
        self._encoder = model.perception.encoder.make_cache(1, model.activations)
        self._rnnt = model.rnnt.make_cache()
        self._codec = model.codec.make_cache()
        self._frames = 0

    def advance(self, rows: NDArray[np.float32], *, last: bool = False, padding_frame: bool = False) -> Block:
        """Mel rows [T, features] → the frames that they complete.

        `last` ends the stream; a frame of padding, which the transcript does not hear, may follow. Compiled, everything
        is queued and the host looks once, at the end; otherwise each stage is waited for and timed.
        """
        model, first_frame = self._model, self._frames
        mel = mx.array(rows)[None].astype(model.activations)
        with self._stage("perception") as done:
            projected, encoded = self._perceive(mel, last=last, padding_frame=padding_frame)
            done += [projected, encoded, *arrays_of(self._encoder)]
        with self._stage("rnnt") as done:
            heard = encoded[:, : encoded.shape[1] - padding_frame].astype(mx.float32)
            pieces = self._transcribe(heard, first_frame)
            done += arrays_of(self._rnnt)
        ids, codes = [], []
        for frame in mx.split(projected, projected.shape[1], axis=1):
            with self._stage("llm") as done:
                self._duplex.think(frame)
                ids.append(mx.concatenate([self._duplex.text[0], self._duplex.function[0]]))
                done += ids[-1:]
            with self._stage("talker") as done:
                codes.append(self._duplex.speak())
                done += [codes[-1], *self._duplex.arrays()]
        with self._stage("codec") as done:
            wave = self._sound(mx.stack(codes)[None])
            done += [wave, *arrays_of(self._codec)]
        both = mx.stack(ids).astype(mx.int32)
        with self.clock("wait"):
            mx.eval(wave, both, codes, pieces if isinstance(pieces, mx.array) else [])
        self._frames += len(codes)
        if isinstance(pieces, mx.array):
            pieces = model.rnnt.pieces(np.asarray(pieces), first_frame)
        text, function = np.ascontiguousarray(np.asarray(both).T)
        ids_of_block = Ids(text, function, np.stack([*map(np.asarray, codes)]))
        return Block(ids_of_block, pieces, np.asarray(wave)[0])

    def flush(self) -> NDArray[np.float32]:
        """The last `codec.delay` samples of the stream."""
        return np.asarray(self._model.codec.flush(self._codec))[0]

    @contextmanager
    def _stage(self, name: str) -> Iterator[list[mx.array]]:
        """Time a stage. What the body puts into the list is evaluated in it, or only queued where stages overlap."""
        with self.clock(name):
            done: list[mx.array] = []
            yield done
            if self._waits:
                mx.eval(done)
            else:
                mx.async_eval(done)

    def _perceive(self, mel: mx.array, *, last: bool, padding_frame: bool) -> tuple[mx.array, mx.array]:
        perception = self._model.perception
        if mel.shape[1] == self._model.config.audio_config.encoder.subsampling_factor and not last:
            return self._model.run(hear, self._encoder, mel)
        encoded = perception.encoder(mel, self._encoder, last=last)
        if padding_frame:
            encoded = mx.concatenate([encoded, perception.encoder.padding_frame(self._encoder)], axis=1)
        return perception.proj(encoded), encoded

    def _transcribe(self, heard: mx.array, first_frame: int) -> Pieces | mx.array:
        """Pieces, or when compiled one frame's pieces still on the device."""
        if self._model.run.compiled and heard.shape[1] == 1:
            return self._model.run(transcribe, self._rnnt, heard)
        return self._model.rnnt.decode(heard, self._rnnt, first_frame)

    def _sound(self, codes: mx.array) -> mx.array:
        if codes.shape[1] == 1:
            return self._model.run(sound, self._codec, codes)
        return sound(self._model, self._codec, codes)


def hear(model: VoiceChat, cache: EncoderCache, mel: mx.array) -> tuple[mx.array, mx.array]:
    """Mel rows of one frame → projected (1, 1, hidden) and encoded (1, 1, d_model)."""
    return model.perception(mel, cache)


def transcribe(model: VoiceChat, cache: RnntCache, heard: mx.array) -> mx.array:
    """One encoded frame (1, 1, d_model) → its pieces (max_symbols,), blank where there are no more."""
    return model.rnnt.decode_frame(heard, cache)


def sound(model: VoiceChat, cache: CodecCache, codes: mx.array) -> mx.array:
    """Codes (1, F, Q) → the stream's next samples (1, 1764·F)."""
    return model.codec.decode_stream(codes, cache)
