"""A checkpoint that answers recordings: through voicechat_mlx, or through the twin."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Wave = NDArray[np.float32]


@dataclass(frozen=True)
class Reply:
    """What came of one recording. F frames."""

    text: NDArray[np.int64]
    """(F,) ids."""
    function: NDArray[np.int64]
    transcript: str
    audio: Wave
    """(1764 F,) at 22.05 kHz."""
    seconds: float
    """How long it took."""


class Answerer(Protocol):
    """One loaded checkpoint."""

    load_seconds: float

    def reply(self, wave: Wave, prompt: str, extra_seconds: float = 3.0) -> Reply:
        """Samples at 16 kHz → reply."""

    def through_codec(self, wave: Wave) -> Wave:
        """Samples at 22.05 kHz → whole frames of them, encoded and decoded."""

    def silence(self, frames: int) -> Wave:
        """The silence codes, decoded."""


class MlxAnswerer:
    """The product."""

    def __init__(self, folder: Path) -> None:
        import voicechat_mlx

        began = time.monotonic()
        self._package = voicechat_mlx
        self._model = voicechat_mlx.load(folder)
        self.load_seconds = time.monotonic() - began

    def reply(self, wave: Wave, prompt: str, extra_seconds: float = 3.0) -> Reply:
        """See `Answerer`."""
        began = time.monotonic()
        result = self._package.generate(
            self._model, wave, system_prompt=prompt, extra_decoding_seconds=extra_seconds, seed=0
        )
        seconds = time.monotonic() - began
        text, function = (ids.astype(np.int64) for ids in (result.text_tokens, result.function_tokens))
        return Reply(text, function, result.user_transcript, result.audio, seconds)

    def streaming_factor(self, wave: Wave) -> float:
        """Seconds of work to a second of sound, in pushes of 80 ms."""
        began = time.monotonic()
        session = self._package.Session(self._model, "")
        for start in range(0, len(wave), 1280):
            session.push(wave[start : start + 1280])
        session.finish()
        return (time.monotonic() - began) / (len(wave) / 16000)

    def through_codec(self, wave: Wave) -> Wave:
        """See `Answerer`."""
        import mlx.core as mx

        codes = self._model.codec.encode(mx.array(wave[None]))
        return np.asarray(self._model.codec.decode(codes))[0]

    def silence(self, frames: int) -> Wave:
        """See `Answerer`."""
        import mlx.core as mx

        codes = mx.broadcast_to(self._model.codec_silence_tokens, (1, frames, len(self._model.codec_silence_tokens)))
        return np.asarray(self._model.codec.decode(codes))[0]


class TwinAnswerer:
    """The twin: no cache, so time grows with the square of the length; without noise, the likeliest component."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        from reference.weights import load_model

        began = time.monotonic()
        self._model = load_model(folder)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.load_seconds = time.monotonic() - began

    def reply(self, wave: Wave, prompt: str, extra_seconds: float = 3.0) -> Reply:
        """See `Answerer`."""
        from reference.offline import generate
        from reference.perception.rnnt import decode_pieces

        began = time.monotonic()
        config = self._model.config
        inner = self._tokenizer.encode(prompt, add_special_tokens=False).ids
        ids = [config.bos_token_id, *inner, config.eos_token_id] if prompt else None
        traces = generate(self._model, wave, prompt_ids=ids, extra_decoding_seconds=extra_seconds)
        text, function = (traces[name].numpy().astype(np.int64) for name in ("text.ids", "function.ids"))
        heard = decode_pieces(traces["rnnt.ids"].tolist(), config.rnnt_vocabulary or ())
        return Reply(text, function, heard, traces["codec.audio"].numpy(), time.monotonic() - began)

    def through_codec(self, wave: Wave) -> Wave:
        """See `Answerer`."""
        import torch

        with torch.no_grad():
            codec = self._model.codec
            made: Wave = codec.decode(codec.encode(torch.from_numpy(wave)[None]))[0].numpy()
            return made

    def silence(self, frames: int) -> Wave:
        """See `Answerer`."""
        import torch

        with torch.no_grad():
            made: Wave = self._model.codec.decode(self._model.codec_silence_tokens.expand(1, frames, -1))[0].numpy()
            return made


def open_checkpoint(folder: Path, backend: str) -> Answerer:
    """`backend`: mlx or torch."""
    return MlxAnswerer(folder) if backend == "mlx" else TwinAnswerer(folder)
