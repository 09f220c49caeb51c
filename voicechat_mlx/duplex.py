"""The heart: one 80 ms step of the full-duplex loop.

    fused = E(text[t-1]) + audio[t] + 2 · E(function[t-1])        text[t], function[t] = argmax of two heads
    codes[t] = talker(text[t], codes[t-1])

Only the text id, the function id and the codes return into the loop, and they do so here, on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import mlx.core as mx
import numpy as np

from voicechat_mlx.conventions import Conventions
from voicechat_mlx.llm.nemotron_h import LayersCache
from voicechat_mlx.model import VoiceChat, VoicePrompt
from voicechat_mlx.nn.cache import Cache, arrays_of, limit_history
from voicechat_mlx.nn.fused import fused
from voicechat_mlx.talker.backbone import BackboneCache

FREE = 2**32 - 1
"""In the place of an id that is written from outside: the model chooses."""


class Thinking(Cache):
    """The language model's side of the loop."""

    def __init__(self, layers: LayersCache, pad: int) -> None:
        self.layers = layers
        self.said = _said(*[mx.array([[pad]], dtype=mx.uint32)] * 2)
        """The latest text and function ids, over and over: MLX keeps the smallest arrays far from a GPU."""

    @property
    def text(self) -> mx.array:
        """(1, 1) the latest text id."""
        return self.said[None, :1]

    @property
    def function(self) -> mx.array:
        """(1, 1) the latest function id."""
        return self.said[None, 1:2]


def _said(text: mx.array, function: mx.array) -> mx.array:
    """Two ids (1, 1) → (16,)."""
    return mx.tile(mx.concatenate([text[0], function[0]]), 8)


class Speaking(Cache):
    """The talker's side of the loop."""

    def __init__(self, voice: VoicePrompt, seed: int) -> None:
        self.layers: BackboneCache = voice.cache.clone()
        for layer in self.layers.layers:
            layer.detach()
        self.codes = voice.last_codes
        """(1, 1, Q) the latest codes, as generated."""
        self.key = mx.random.key(seed)
        """The random key; each step takes its own from it."""


class DuplexState(Cache):
    """All that the loop remembers between two steps."""

    def __init__(self, thinking: Thinking, speaking: Speaking) -> None:
        self.thinking = thinking
        self.speaking = speaking
        self.begun = False
        """Whether position 0 of the timeline is done: there the talker does not run."""


PROMPT_AT_ONCE = 128
"""Prompt tokens in one call of the language model: enough for most, and no long wait for others."""


def start(
    model: VoiceChat, prompt_ids: Sequence[int], seed: int, conventions: Conventions, history_frames: int
) -> DuplexState:
    """A state that has heard the voice prompt and is about to hear the system prompt (`hear_prompt`).

    It will never forget these, but all else that is older than `history_frames`.
    """
    thinking = Thinking(model.llm.make_cache(1, model.activations), model.config.pad_token_id)
    voice = model.voice_prompt(conventions)
    state = DuplexState(thinking, Speaking(voice, seed))
    limit_history(thinking.layers, history_frames, kept=len(prompt_ids))
    limit_history(state.speaking.layers, history_frames, kept=voice.codes.shape[1])
    return state


def hear_prompt(model: VoiceChat, state: DuplexState, prompt_ids: Sequence[int]) -> Iterator[None]:
    """Advance the state by the system prompt; yields after each piece of work, for others to have their turn.

    Prompt tokens enter on the audio channel while text and function stay PAD, so the language model takes many in one
    call. The talker speaks over them from position 1 on, and its codes count as history.
    """
    thinking = state.thinking
    for begin in range(0, len(prompt_ids), PROMPT_AT_ONCE):
        ids = mx.array([list(prompt_ids[begin : begin + PROMPT_AT_ONCE])], dtype=mx.uint32)
        hidden = model.run.plain(read, thinking, ids)
        mx.async_eval(hidden, arrays_of(thinking))  # a kernel that fills buffers in place runs for its result alone
        yield
    for _ in prompt_ids[1:]:
        model.run(speak, state.speaking, thinking.text)
        mx.async_eval(arrays_of(state))
        yield
    state.begun = bool(prompt_ids)


def read(model: VoiceChat, state: Thinking, ids: mx.array) -> mx.array:
    """Advance the language model by prompt tokens (1, T), on the audio channel: hidden states (1, T, hidden)."""
    pads = mx.broadcast_to(state.text, ids.shape)
    hidden: mx.array = model.llm(model.fuse(pads, model.embed_tokens(ids), pads), state.layers)
    return hidden


def first_codes(model: VoiceChat, conventions: Conventions) -> mx.array:
    """What the codec hears at position 0: (Q,)."""
    silence = model.codec_silence_tokens
    return model.replace_control_codes(silence if conventions.silent_first_frame else mx.zeros_like(silence))


def think(model: VoiceChat, state: Thinking, audio: mx.array, written: mx.array | None = None) -> mx.array:
    """Advance the language model by one projected frame (1, 1, hidden): new text and function ids, greedily; (2,).

    `written` (1, 1) puts its id on the function channel and PAD on the text channel, unless it is `FREE`.
    """
    hidden = model.llm(model.fuse(state.text, audio, state.function), state.layers)
    text = _boosted(model, fused(hidden, model.lm_head)).argmax(axis=-1)
    function = fused(hidden, model.function_head).argmax(axis=-1)
    if written is not None:
        text = mx.where(written == FREE, text, mx.array(model.config.pad_token_id, mx.uint32))
        function = mx.where(written == FREE, function, written)
    state.said = _said(text, function)
    return (state.said + 0)[:2]  # a copy: what the host reads leaves the GPU's memory


def speak(model: VoiceChat, state: Speaking, text: mx.array) -> mx.array:
    """Advance the talker by one frame: text id (1, 1) → what the codec hears, (Q,). EOS makes it forget its past."""
    ends = (text == model.config.eos_token_id)[..., None]
    previous = mx.where(ends, model.codec_silence_tokens, state.codes)
    token = None if model.run.compiled else int(np.asarray(text)[0, 0])
    hidden = model.talker.advance(text, previous, state.layers, token=token)
    state.key, key = mx.random.split(state.key)
    codes = model.talker.generate_codes(hidden[:, 0], model.talker.draws(key))
    state.codes = codes[None, None]
    return model.replace_control_codes(codes)


def _boosted(model: VoiceChat, logits: mx.array) -> mx.array:
    """Add the checkpoint's PAD, BOS and EOS boosts, where it has any."""
    config = model.config
    boosts = {
        config.pad_token_id: config.inference_pad_boost,
        config.bos_token_id: config.inference_bos_boost,
        config.eos_token_id: config.inference_eos_boost,
    }
    for token, boost in boosts.items():
        if boost:
            logits = logits + boost * (mx.arange(logits.shape[-1]) == token)
    return logits
