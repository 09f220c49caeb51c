"""The heart: one 80 ms step of the full-duplex loop.

    fused = E(text[t-1]) + audio[t] + 2 · E(function[t-1])        text[t], function[t] = argmax of two heads
    codes[t] = talker(text[t], codes[t-1])

Only the text id, the function id and the codes return into the loop, and they do so here, on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from voicechat_mlx.conventions import Conventions
from voicechat_mlx.llm.nemotron_h import LayersCache
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.nn.cache import arrays_of
from voicechat_mlx.talker.backbone import BackboneCache


class Duplex:
    """One conversation's loop and all that it remembers. Every frame is `think(audio)`, then `speak()`."""

    def __init__(self, model: VoiceChat, prompt_ids: Sequence[int], seed: int, conventions: Conventions) -> None:
        """Hears the voice prompt and the system prompt."""
        voice = model.voice_prompt(conventions)
        self._model, self._conventions = model, conventions
        self._llm = model.llm.make_cache(1, model.activations)
        self._talker = voice.cache.clone()
        self._codes = voice.last_codes
        self._key = mx.random.key(seed)
        self.text = mx.array([[model.config.pad_token_id]], dtype=mx.uint32)
        """(1, 1) the latest text id."""
        self.function = self.text
        """(1, 1) the latest function id."""
        self._position = 0
        if prompt_ids:
            self._hear_prompt(mx.array([list(prompt_ids)], dtype=mx.uint32))

    def arrays(self) -> list[mx.array]:
        """All that is remembered, to be evaluated."""
        own = [self.text, self.function, self._codes, self._key]
        return own + arrays_of(self._llm) + arrays_of(self._talker)

    def think(self, audio: mx.array) -> None:
        """One projected audio frame (1, 1, hidden) → the next text and function ids."""
        self.text, self.function = self._model.run(think, self._llm, self.text, audio, self.function)

    def speak(self) -> mx.array:
        """The codes (Q,) that the codec shall hear for the current text id. At position 0 the talker does not run."""
        if self._position == 0:
            silence = self._model.codec_silence_tokens
            codes = silence if self._conventions.silent_first_frame else mx.zeros_like(silence)
        else:
            codes, self._key = self._model.run(speak, self._talker, self.text, self._codes, self._key)
            self._codes = codes[None, None]
        self._position += 1
        return self._model.replace_control_codes(codes)

    def _hear_prompt(self, ids: mx.array) -> None:
        """Prompt tokens enter on the audio channel while text and function stay PAD.

        The language model takes them in one call. The talker speaks over them and its codes count as history.
        """
        pads = mx.broadcast_to(self.text, ids.shape)
        self._model.llm(self._model.fuse(pads, self._model.embed_tokens(ids), pads), self._llm)
        for _ in range(ids.shape[1]):
            self.speak()
            mx.async_eval(self.arrays())


def think(
    model: VoiceChat, cache: LayersCache, text: mx.array, audio: mx.array, function: mx.array
) -> tuple[mx.array, mx.array]:
    """The ids said before and one audio frame → new text and function ids (1, 1), greedily."""
    hidden = model.llm(model.fuse(text, audio, function), cache)
    return _boosted(model, model.lm_head(hidden)).argmax(axis=-1), model.function_head(hidden).argmax(axis=-1)


def speak(
    model: VoiceChat, cache: BackboneCache, text: mx.array, codes: mx.array, key: mx.array
) -> tuple[mx.array, mx.array]:
    """The text id and the codes before it → codes (Q,) and the next key. EOS makes the talker forget what it said."""
    ends = (text == model.config.eos_token_id)[..., None]
    previous = mx.where(ends, model.codec_silence_tokens, codes)
    longest = None if model.run.compiled else model.talker.embed_subword.longest(text)
    hidden = model.talker.advance(text, previous, cache, longest=longest)
    key, own_key = mx.random.split(key)
    return model.talker.generate_codes(hidden[:, 0], model.talker.draws(own_key)), key


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
