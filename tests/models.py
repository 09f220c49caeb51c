"""Small models and signals for tests: healthy random weights in memory, no files.

`build` takes the tiny checkpoint's configuration with any values replaced, so that a test can ask for odd sizes.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten
from numpy.typing import NDArray

from fixtures.tiny_config import rnnt_pieces, tiny_config
from fixtures.tiny_tokenizer import save_tokenizer
from fixtures.tiny_weights import draw_weights
from voicechat_mlx.config import VoiceChatConfig
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.precision import precision
from voicechat_mlx.text import TextTokenizer
from voicechat_mlx.weights import load_weights

Float32 = NDArray[np.float32]
Module = TypeVar("Module", bound=nn.Module)

SHALLOW: dict[str, Any] = {
    "text_config": {"num_hidden_layers": 2, "hybrid_override_pattern": "M*"},
    "audio_config": {"encoder": {"n_layers": 1}},
    "tts_config": {"num_hidden_layers": 2, "sliding_window_pattern": 2, "audio_prompt_duration": 0.4},
    "codec_config": {"blocks_per_stage": 1},
}
"""One layer of each kind and a voice prompt of five frames: the quickest model in which every part moves."""


HASTY: dict[str, Any] = {
    **SHALLOW,
    "tts_config": {**SHALLOW["tts_config"], "num_quantizers": 2, "mog_head": {"num_layers": 1}},
    "codec_config": {**SHALLOW["codec_config"], "num_quantizers": 2},
}
"""Two codebooks instead of 31: for tests of very many frames."""


@functools.cache
def tokenizer() -> TextTokenizer:
    """The byte-level tokenizer of the tiny checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(Path(folder))
        return TextTokenizer(Path(folder) / "tokenizer.json")


def build(overrides: dict[str, Any] | None = None, *, seed: int = 0, extra: dict[str, Any] | None = None) -> VoiceChat:
    """A float32 model. `overrides` replace values of the tiny config, `extra` adds top-level keys that it lacks."""
    values = {**tiny_config(overrides or {}), **(extra or {})}
    config = VoiceChatConfig.from_dict(values)
    model = VoiceChat(config)
    drawn = draw_weights(values, tokenizer().vocabulary, seed).tensors
    load_weights(
        model, {name: mx.array(tensor) for name, tensor in drawn.items()}, config, precision=precision("float32")
    )
    model.prepare(tokenizer(), tuple(rnnt_pieces(config.audio_config.decoder.vocab_size)))
    return model


@functools.cache
def tiny() -> VoiceChat:
    """The tiny checkpoint's own sizes. Shared: no test may change it."""
    return build()


@functools.cache
def shallow() -> VoiceChat:
    """`SHALLOW`. Shared: no test may change it."""
    return build(SHALLOW)


@functools.cache
def hasty() -> VoiceChat:
    """`HASTY`. Shared: no test may change it."""
    return build(HASTY)


def randomised(module: Module, *, seed: int = 0, std: float = 0.3) -> Module:
    """The module with Gaussian numbers in every parameter, and what it derives from them made anew."""
    generator = np.random.default_rng(seed)
    declared: list[tuple[str, mx.array]] = tree_flatten(module.parameters())
    drawn = [(name, mx.array(std * generator.standard_normal(old.shape), old.dtype)) for name, old in declared]
    return with_weights(module, dict(drawn))


def with_weights(module: Module, weights: dict[str, mx.array]) -> Module:
    """The module with these parameters replaced, and what it derives from them made anew."""
    module.update(tree_unflatten(list(weights.items())))
    for part in module.modules():
        if hasattr(part, "prepare") and not isinstance(part, VoiceChat):
            part.prepare()
    return module


def weights_of(module: nn.Module) -> dict[str, NDArray[np.float64]]:
    """Parameter name → float64, for equations written out in NumPy."""
    return {name: np.asarray(array, np.float64) for name, array in tree_flatten(module.parameters())}


def normal(*shape: int, seed: int = 0) -> mx.array:
    """Gaussian numbers, always the same for the same arguments."""
    return mx.array(np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32))


def speech(seconds: float, *, seed: int = 0, sample_rate: int = 16000) -> Float32:
    """Something like speech: a buzz whose pitch and loudness wander, with breath noise, peak 0.5."""
    generator = np.random.default_rng(seed)
    count = round(seconds * sample_rate)
    time = np.arange(count) / sample_rate
    pitch = 140 + 50 * np.sin(2 * np.pi * 1.3 * time + generator.uniform(0, 6))
    buzz = sum(np.sin(k * 2 * np.pi * np.cumsum(pitch) / sample_rate) / k for k in (1, 2, 3, 5, 8))
    loudness = np.abs(np.sin(2 * np.pi * 2.1 * time + generator.uniform(0, 6))) ** 2
    wave = loudness * (buzz + 0.1 * generator.standard_normal(count))
    return (0.5 * wave / max(1e-9, np.abs(wave).max(initial=0.0))).astype(np.float32)
