"""The four networks side by side, and the one place where they meet: `fuse`. No loop, no state.

What is derived from the weights alone (the voice prompt's codes and its key/value caches) is computed once and kept.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from voicechat_mlx.audio.mel import MelFilterbank
from voicechat_mlx.checkpoint import Checkpoint
from voicechat_mlx.codec.codec import Codec
from voicechat_mlx.config import VoiceChatConfig
from voicechat_mlx.conventions import Conventions
from voicechat_mlx.errors import CheckpointError
from voicechat_mlx.llm.nemotron_h import NemotronH
from voicechat_mlx.memory import give_back_freed, require_fit
from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.cache import arrays_of
from voicechat_mlx.nn.packed import pack
from voicechat_mlx.nn.runner import Runner
from voicechat_mlx.nn.worker import settle_worker
from voicechat_mlx.perception.conformer import Perception
from voicechat_mlx.perception.rnnt import GreedyRnnt, JointNetwork, RnntDecoder
from voicechat_mlx.precision import precision
from voicechat_mlx.talker.backbone import BackboneCache
from voicechat_mlx.talker.ear_tts import EarTts
from voicechat_mlx.text import CharacterTable, TextTokenizer
from voicechat_mlx.weights import load_weights


@dataclass(frozen=True, kw_only=True)
class VoicePrompt:
    """What the talker has heard before a session begins: P frames in the voice of Aria."""

    codes: mx.array
    """(1, P, Q): the codec's codes of silence, the first and last frame masked."""
    cache: BackboneCache
    """The talker's past after those frames; clone it, never step it."""

    @property
    def last_codes(self) -> mx.array:
        """(1, 1, Q)."""
        return self.codes[:, -1:]


class VoiceChat(nn.Module):
    """All weights of a checkpoint, under their canonical names."""

    def __init__(self, config: VoiceChatConfig) -> None:
        super().__init__()
        text, tts = config.text_config, config.tts_config
        self.config = config
        self.embed_tokens = nn.Embedding(text.vocab_size, text.hidden_size)
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.function_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.llm = NemotronH(text)
        self.perception = Perception(config.audio_config)
        self.rnnt_decoder = RnntDecoder(config.audio_config)
        self.rnnt_joint = JointNetwork(config.audio_config)
        self.talker = EarTts(tts)
        self.codec = Codec(config.codec_config)
        self.control_codes = mx.zeros((3,), dtype=mx.int32)
        self.codec_silence_tokens = mx.zeros((tts.num_quantizers,), dtype=mx.int32)
        self.audio_prompt_latent = mx.zeros((1, config.voice_prompt_frames, tts.hidden_size))
        self.mel_filterbank = MelFilterbank(config.audio_config.preprocessor)
        self._voice_prompts: dict[Conventions, VoicePrompt] = {}
        self.run = Runner(self, compiled=mx.default_device().type == mx.DeviceType.gpu)
        """Runs the stages of one frame, compiled on a GPU."""

    def prepare(self, tokenizer: TextTokenizer, rnnt_vocabulary: tuple[str, ...]) -> None:
        """After the weights are in: attach the vocabularies, derive what modules keep ready, and evaluate all of it.

        Everything is evaluated here so that any thread may use the model afterwards.
        """
        self.tokenizer = tokenizer
        self._rnnt_vocabulary = rnnt_vocabulary
        table = CharacterTable.build(
            tokenizer.vocabulary,
            vocab_size=self.config.text_config.vocab_size,
            char_vocab_size=self.config.tts_config.character_encoder.char_vocab_size,
        )
        self.talker.embed_subword.set_characters(mx.array(table.indices), mx.array(table.lengths))
        for module in self.modules():
            if module is not self and hasattr(module, "prepare"):
                module.prepare()
        pack(self, except_for="mog_head.proj_mus")
        if cuda.available() or self.talker.embed_subword.is_small:
            self.talker.embed_subword.tabulate()
        else:
            self.talker.embed_subword.keep(self.config.pad_token_id)
        leaves = dict(tree_flatten(dict(self))).values()
        mx.eval([leaf for leaf in leaves if isinstance(leaf, mx.array)])

    @property
    def rnnt_vocabulary(self) -> tuple[str, ...]:
        """The pieces of the transcript branch, by id."""
        return self._rnnt_vocabulary

    @property
    def activations(self) -> mx.Dtype:
        """What perception and the language model compute in."""
        return self.perception.proj.bias.dtype

    @property
    def rnnt(self) -> GreedyRnnt:
        """The transcript branch, decoding greedily."""
        return GreedyRnnt(self.rnnt_decoder, self.rnnt_joint, self.config.audio_config.max_symbols)

    def fuse(self, text: mx.array, audio: mx.array, function: mx.array) -> mx.array:
        """Ids said before (B, T) twice and audio (B, T, hidden) → E(text) + audio + w · E(function)."""
        weight = self.config.function_channel_weight
        return self.embed_tokens(text) + audio + weight * self.embed_tokens(function)

    def replace_control_codes(self, codes: mx.array) -> mx.array:
        """(…, Q) generated codes → codes that the codec may hear: control codes become that level's silence."""
        is_control = (codes[..., None] == self.control_codes).any(axis=-1)
        return mx.where(is_control, self.codec_silence_tokens, codes)

    def voice_prompt(self, conventions: Conventions) -> VoicePrompt:
        """The warmed-up talker, computed once per model and convention."""
        if conventions not in self._voice_prompts:
            self._voice_prompts[conventions] = self._warm_up(conventions)
        return self._voice_prompts[conventions]

    def _warm_up(self, conventions: Conventions) -> VoicePrompt:
        frames = self.audio_prompt_latent.shape[1]
        silence = mx.zeros((1, (frames + 1) * self.codec.samples_per_frame))
        codes = self.codec.encode(silence)[:, :frames]
        position = mx.arange(frames)[None, :, None]
        codes = mx.where((position == 0) | (position == frames - 1), self.talker.mask_code, codes)
        last = self.config.eos_token_id if conventions.warmup_ends_with_eos else self.config.pad_token_id
        subwords = mx.array([[self.config.pad_token_id] * (frames - 1) + [last]])
        cache = self.talker.make_cache()
        mx.eval(self.talker.warm_up(codes, self.audio_prompt_latent, subwords, cache), codes, arrays_of(cache))
        return VoicePrompt(codes=codes, cache=cache)


def load(source: str | os.PathLike[str] | None = None, dtype: str = "auto", *, force: bool = False) -> VoiceChat:
    """A checkpoint folder, a Hub id, or nothing for the bundled model → a model ready to run.

    `dtype`: "auto", "float32", "mixed" or "bfloat16"; see `precision`. A checkpoint that cannot fit into memory is
    refused before it is read, unless `force`. Raises CheckpointError or ConfigError.
    """
    if not (source is None or isinstance(source, str | os.PathLike)):
        raise CheckpointError(f"a model is named by a folder or a Hub id, not by {type(source).__name__}")
    checkpoint = Checkpoint.open(source)
    settle_worker()
    model = VoiceChat(checkpoint.config)
    tensors = checkpoint.tensors()
    require_fit(checkpoint.config, tensors, dtype, name=checkpoint.folder, force=force)
    load_weights(model, tensors, checkpoint.config, precision=precision(dtype))
    model.prepare(TextTokenizer(checkpoint.tokenizer), checkpoint.rnnt_vocabulary)
    give_back_freed()
    return model
