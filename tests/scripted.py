"""Models whose function channel says what a test wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx import nn

from tests.models import HASTY, build, tokenizer
from voicechat_mlx import ToolLimits
from voicechat_mlx.model import VoiceChat

PAD, START, END, RESPONSE_END = 12, 20, 21, 22
HASTY_LIMITS = ToolLimits(call_tokens=2, call_seconds=0.8)


def spelt(calls: str) -> list[int]:
    """A call as the model emits it, markers included."""
    return [START, *tokenizer().encode(f"<TOOLCALL>{calls}</TOOLCALL>"), END]


def written(*results: str) -> list[int]:
    """What is forced for these results, to the last id."""
    return [*tokenizer().encode(f"<TOOL_RESPONSE>[{', '.join(results)}]</TOOL_RESPONSE>"), RESPONSE_END]


def scripted(ids: Sequence[int], **extra: Any) -> VoiceChat:
    """A model for one session that emits these function ids on its first frames, then PAD. `extra` goes into config."""
    model = build(HASTY, extra=extra)
    model.function_head = Script(ids, model.config.text_config.vocab_size)
    return model


def talkative() -> VoiceChat:
    """A model for any number of sessions that begins a call now and then, as its hidden state has it.

    What it calls is never well formed. With `HASTY_LIMITS` it is answered from outside again and again.
    """
    model = build(HASTY)
    model.function_head = _FewWords(model.function_head, [START, END, *tokenizer().encode("abcdefgh")])
    return model


class Script(nn.Module):
    """A head that says these ids, one a frame, then PAD."""

    def __init__(self, ids: Sequence[int], vocab_size: int) -> None:
        super().__init__()
        self._left, self._words = list(ids), mx.arange(vocab_size)

    def __call__(self, hidden: mx.array) -> mx.array:
        id = self._left.pop(0) if self._left else PAD
        return (self._words == id).astype(mx.float32)[None, None]


class _FewWords(nn.Module):
    def __init__(self, head: nn.Module, ids: Sequence[int]) -> None:
        super().__init__()
        self._head, self._ids = head, mx.array(ids)

    def __call__(self, hidden: mx.array) -> mx.array:
        logits = self._head(hidden)
        logits = logits + 2.0 * (mx.arange(logits.shape[-1]) == START)  # else it would begin one call in all
        allowed = (mx.arange(logits.shape[-1])[:, None] == self._ids).any(axis=-1)
        return mx.where(allowed, logits, -mx.inf)
