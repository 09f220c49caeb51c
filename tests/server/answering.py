"""Models that say what a test wants: text and function ids written down frame by frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
from mlx import nn

from tests.models import HASTY, build, tokenizer
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.server.worker import WARM_UP_FRAMES

BOS, EOS, PAD = 1, 2, 12


def words(text: str) -> list[int]:
    return list(tokenizer().encode(text))


def saying(text: Sequence[int], function: Sequence[int] = ()) -> Callable[[], VoiceChat]:
    """Loads a model for one conversation: these ids on its first frames, then PAD.

    The server's own warm-up takes frames, too, before that conversation.
    """

    def load() -> VoiceChat:
        model = build(HASTY)
        size = model.config.text_config.vocab_size
        warm_up = [PAD] * WARM_UP_FRAMES
        model.lm_head = _Script([*warm_up, *text], size)
        model.function_head = _Script([*warm_up, *function], size)
        return model

    return load


class _Script(nn.Module):
    def __init__(self, ids: Sequence[int], vocab_size: int) -> None:
        super().__init__()
        self._left, self._words = list(ids), mx.arange(vocab_size)

    def __call__(self, hidden: mx.array) -> mx.array:
        id = self._left.pop(0) if self._left else PAD
        return (self._words == id).astype(mx.float32)[None, None]
