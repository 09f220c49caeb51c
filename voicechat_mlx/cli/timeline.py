"""From a result to what the picture shows: each id becomes the text that it makes certain, in its frame."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from voicechat_mlx.cli.plot import Label, Timeline, Wave
from voicechat_mlx.text import Detokenizer, RnntPieces

if TYPE_CHECKING:
    from voicechat_mlx.audio.wav import Samples
    from voicechat_mlx.model import VoiceChat
    from voicechat_mlx.offline import VoiceChatResult


def timeline_of(model: VoiceChat, question: Samples, result: VoiceChatResult) -> Timeline:
    """`question` is the recording at the model's input rate, without appended silence."""
    config = model.config
    silent = config.silent_token_ids

    def channel(ids: Iterable[int]) -> list[Label]:
        spoken = ((frame, int(id)) for frame, id in enumerate(ids) if int(id) not in silent)
        return labels(spoken, Detokenizer(model.tokenizer).push)

    heard = zip(result.transcript_frames.tolist(), result.transcript_tokens.tolist(), strict=True)
    return Timeline(
        frames=result.frames,
        frame_seconds=config.frame_duration,
        question=Wave(samples=question, sample_rate=config.input_sample_rate),
        transcript=labels(heard, RnntPieces(model.rnnt_vocabulary).push),
        text=channel(result.text_tokens),
        function=channel(result.function_tokens),
        answer=Wave(samples=result.audio, sample_rate=result.sample_rate),
    )


def labels(ids: Iterable[tuple[int, int]], push: Callable[[int], str]) -> list[Label]:
    """(frame, id) in order → (frame, text), the texts of one frame joined, frames without text left out."""
    texts: dict[int, str] = {}
    for frame, id in ids:
        texts[frame] = texts.get(frame, "") + push(id)
    return [(frame, text) for frame, text in texts.items() if text]
