"""Answer a whole recording: one session, fed everything, then silence, then the end."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from voicechat_mlx.audio.wav import check_samples, read_audio, sample_count
from voicechat_mlx.conventions import Conventions
from voicechat_mlx.events import Audio, Delta, Event, FunctionDelta, TextDelta, TranscriptDelta
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.perception.subsampling import encoder_frames
from voicechat_mlx.session import BLOCK_FRAMES, Session

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class VoiceChatResult:
    """What came of one recording. F frames of 80 ms, Q codebooks."""

    user_transcript: str
    text: str
    function_text: str
    audio: NDArray[np.float32]
    """[1764·F] at `sample_rate`."""
    sample_rate: int
    text_tokens: NDArray[np.int32]
    """[F]."""
    function_tokens: NDArray[np.int32]
    """[F]."""
    audio_codes: NDArray[np.int32]
    """[F, Q], control codes replaced."""
    transcript_tokens: NDArray[np.int32]
    """[n] every non-blank RNNT piece."""
    transcript_frames: NDArray[np.int32]
    """[n] the frame of each."""
    frames: int
    seconds: dict[str, float]
    """Wall-clock seconds by stage."""


def generate(
    model: VoiceChat,
    audio: str | os.PathLike[str] | ArrayLike,
    system_prompt: str | None = None,
    extra_decoding_seconds: float = 3.0,
    seed: int = 0,
    conventions: str | Conventions = "mlx",
    progress: Progress | None = None,
) -> VoiceChatResult:
    """A file of any rate and channel count, or float32 samples [n] at 16 kHz → the whole answer.

    `extra_decoding_seconds` of silence follow the recording so that the answer can end. `progress` is told
    (frames done, frames in all). Raises AudioError for what cannot be used.
    """
    samples = prepare_audio(model, audio, extra_decoding_seconds)
    session = Session(model, system_prompt, seed, conventions)
    total = expected_frames(model, len(samples))
    events: list[Event] = []
    block = BLOCK_FRAMES * model.config.input_samples_per_frame
    for begin in range(0, len(samples), block):
        events += session.push(samples[begin : begin + block])
        if progress:
            progress(session.frames, total)
    events += session.finish()
    if progress:
        progress(session.frames, total)
    return VoiceChatResult(
        user_transcript=_joined(events, TranscriptDelta),
        text=_joined(events, TextDelta),
        function_text=_joined(events, FunctionDelta),
        audio=np.concatenate([event.samples for event in events if isinstance(event, Audio)]),
        sample_rate=model.config.output_sample_rate,
        text_tokens=session.text_tokens,
        function_tokens=session.function_tokens,
        audio_codes=session.audio_codes,
        transcript_tokens=np.array(session.transcript.ids, np.int32),
        transcript_frames=np.array(session.transcript.frames, np.int32),
        frames=session.frames,
        seconds=session.seconds,
    )


def prepare_audio(
    model: VoiceChat, audio: str | os.PathLike[str] | ArrayLike, extra_decoding_seconds: float
) -> NDArray[np.float32]:
    """The samples that a session will hear: the recording at the input rate, then the silence."""
    rate = model.config.input_sample_rate
    silence = np.zeros(sample_count(extra_decoding_seconds, rate), np.float32)
    samples = read_audio(audio, rate) if isinstance(audio, str | os.PathLike) else check_samples(audio)
    return np.concatenate([samples, silence])


def expected_frames(model: VoiceChat, samples: int) -> int:
    """Frames in the answer to that many samples, at 1 + n // 160 mel rows."""
    return encoder_frames(1 + samples // model.config.audio_config.preprocessor.hop_length)


def _joined(events: list[Event], kind: type[Delta]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))
