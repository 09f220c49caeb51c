"""Models that say what a test wants: text and function ids written down frame by frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.models import HASTY, build, tokenizer
from tests.scripted import PAD, Script
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.server.worker import WARM_UP_FRAMES

BOS, EOS = 1, 2


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
        model.lm_head = Script([*warm_up, *text], size)
        model.function_head = Script([*warm_up, *function], size)
        return model

    return load
