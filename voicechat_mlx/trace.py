"""Record activations by name while a session runs, without a line in the models.

The session gets a look-alike of the model: the same weights, but with a `Tap` in place of each module that is watched.
The model itself stays as it is, and so does everything that is computed. Names and shapes are listed in `trace`.
"""

from __future__ import annotations

import copy
import os
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from numpy.typing import ArrayLike, NDArray

from voicechat_mlx.audio.mel import MelStream
from voicechat_mlx.conventions import Conventions, find_conventions
from voicechat_mlx.errors import VoiceChatError
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.runner import Runner
from voicechat_mlx.offline import generate, prepare_audio

Watch = Callable[[tuple[Any, ...], Any], None]
"""Called with the arguments and the result of each call."""


class Recorder:
    """Arrays by name, in the order of the calls."""

    def __init__(self) -> None:
        self._parts: defaultdict[str, list[mx.array]] = defaultdict(list)

    def add(self, name: str, value: mx.array) -> None:
        """Keep one call's value; it is evaluated now, so no graph grows."""
        mx.eval(value)
        self._parts[name].append(cuda.settled(value))

    def joined(self, name: str, axis: int, empty: tuple[int, ...]) -> mx.array:
        """The calls' values joined along an axis; zeros of shape `empty` when there was none."""
        parts = self._parts[name]
        return mx.concatenate(parts, axis=axis) if parts else mx.zeros(empty)

    def stacked(self, name: str, empty: tuple[int, ...]) -> mx.array:
        """The calls' values along a new first axis."""
        parts = self._parts[name]
        return mx.stack(parts) if parts else mx.zeros(empty)


class Tap(nn.Module):
    """Stands where `inner` stood; tells `watch` about each call and forwards everything else."""

    def __init__(self, inner: nn.Module, watch: Watch) -> None:
        super().__init__()
        self.inner = inner
        self._watch = watch

    def __call__(self, *args: Any, **options: Any) -> Any:
        """What `inner` returns."""
        result = self.inner(*args, **options)
        self._watch(args, result)
        return result

    def __getattr__(self, name: str) -> Any:
        own = super().__getattr__
        return own(name) if name in ("inner", "_watch") else getattr(self["inner"], name)


def trace(
    model: VoiceChat,
    audio: str | os.PathLike[str] | ArrayLike,
    system_prompt: str | None = None,
    extra_decoding_seconds: float = 3.0,
    seed: int = 0,
    conventions: str | Conventions = "mlx",
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, NDArray[Any]]:
    """The same inputs as `generate` → every activation by its name; floats as float32, ids as int32.

    F audio frames, P prompt ids, N = P + F, T mel rows, H language-model and h talker width, Q codebooks, V vocabulary:
    mel [1,T,128] · encoder.pre_encode, encoder.layers.i, perception.encoded [1,F,D] · perception.projected [1,F,H] ·
    rnnt.ids, rnnt.frames [n] · llm.fused, llm.hidden [1,N,H] · llm.text_logits, llm.function_logits [1,N,V] ·
    text.ids, function.ids [F] · tts.prompt_codes [37,Q] · tts.warmup_cond [1,37,h] · tts.warmup_fused,
    tts.warmup_hidden [2,37,h] · tts.cond [1,N-1,h] · tts.fused, tts.hidden [2,N-1,h] · tts.mog_mu [N-1,5,latent] ·
    tts.mog_logs [N-1,5] · tts.step_codes [N-1,Q] · tts.codes [F,Q] · codec.latents [1,F,latent] ·
    codec.features [1,441F,18] · codec.audio [1764F].
    """
    samples = prepare_audio(model, audio, extra_decoding_seconds)
    chosen = find_conventions(conventions)
    recorder = Recorder()
    watched = _watched(model, recorder)
    result = generate(watched, samples, system_prompt, 0.0, seed, chosen, progress)
    tts, codec = model.config.tts_config, model.config.codec_config
    hidden = recorder.joined("llm.hidden", 1, (1, 0, model.config.text_config.hidden_size))
    steps, width, rounds = hidden.shape[1] - 1, tts.hidden_size, model.talker.rounds
    layers = [f"encoder.layers.{i}" for i in range(len(model.perception.encoder.layers))]
    encoder = {name: recorder.joined(name, 1, ()) for name in ["encoder.pre_encode", *layers]}
    found: dict[str, mx.array | NDArray[Any]] = {
        "mel": _mel(model, samples, chosen),
        **encoder,
        "perception.encoded": encoder[layers[-1]],
        "perception.projected": recorder.joined("perception.projected", 1, ()),
        "rnnt.ids": result.transcript_tokens,
        "rnnt.frames": result.transcript_frames,
        "llm.fused": recorder.joined("llm.fused", 1, ()),
        "llm.hidden": hidden,
        "llm.text_logits": model.lm_head(hidden),
        "llm.function_logits": model.function_head(hidden),
        "text.ids": result.text_tokens,
        "function.ids": result.function_tokens,
        "tts.prompt_codes": watched.voice_prompt(chosen).codes[0],
        "tts.warmup_cond": recorder.joined("tts.warmup_cond", 1, ()),
        "tts.warmup_fused": recorder.joined("tts.warmup_fused", 1, ()),
        "tts.warmup_hidden": recorder.joined("tts.warmup_hidden", 1, ()),
        "tts.cond": recorder.joined("tts.cond", 1, (1, 0, width)),
        "tts.fused": recorder.joined("tts.fused", 1, (2, 0, width)),
        "tts.hidden": recorder.joined("tts.hidden", 1, (2, 0, width)),
        "tts.mog_mu": recorder.stacked("tts.mog_mu", (0,)).reshape(steps, rounds, tts.latent_size),
        "tts.mog_logs": recorder.stacked("tts.mog_logs", (0,)).reshape(steps, rounds),
        "tts.step_codes": recorder.stacked("tts.step_codes", (0, tts.num_quantizers)).astype(mx.int32),
        "tts.codes": result.audio_codes,
        "codec.latents": recorder.joined("codec.latents", 1, ()),
        "codec.features": recorder.joined("codec.features", 1, (1, 0, codec.stft_channels)),
        "codec.audio": result.audio,
    }
    return {name: _to_numpy(value) for name, value in found.items()}


def _watched(model: VoiceChat, recorder: Recorder) -> VoiceChat:
    """A look-alike of the model that records."""
    twin: VoiceChat = copy.copy(model)
    twin._voice_prompts = {}
    twin.run = Runner(twin, compiled=False)

    def outputs(name: str) -> Watch:
        return lambda args, result: recorder.add(name, result)

    def first_then(first: str, later: str) -> Watch:
        names = iter([first])
        return lambda args, result: recorder.add(next(names, later), result)

    def layer(index: int) -> Watch:
        def watch(args: tuple[Any, ...], result: mx.array) -> None:
            if index == 0:  # its input is what the subsampling gave, padding frames included
                recorder.add("encoder.pre_encode", args[0])
            recorder.add(f"encoder.layers.{index}", result)

        return watch

    def language_model(args: tuple[Any, ...], result: mx.array) -> None:
        recorder.add("llm.fused", args[0])
        recorder.add("llm.hidden", result)

    def mixture(args: tuple[Any, ...], result: tuple[mx.array, mx.array]) -> None:
        recorder.add("tts.mog_mu", result[0])
        recorder.add("tts.mog_logs", result[1])

    for index in range(len(model.perception.encoder.layers)):
        _tap(twin, f"perception.encoder.layers.{index}", layer(index))
    _tap(twin, "perception.proj", outputs("perception.projected"))
    _tap(twin, "llm", language_model)
    _tap(twin, "talker.embed_subword", first_then("tts.warmup_cond", "tts.cond"))
    _tap(twin, "talker.gated_fusion_audio_text", first_then("tts.warmup_fused", "tts.fused"))
    _tap(twin, "talker.backbone", first_then("tts.warmup_hidden", "tts.hidden"))
    _tap(twin, "talker.mog_head", mixture)
    _tap(twin, "codec.decoder", outputs("codec.features"))
    _tap_method(twin, "talker", "generate_codes", outputs("tts.step_codes"))
    _tap_method(twin, "codec.prvq", "decode", outputs("codec.latents"))
    return twin


def _copied(root: nn.Module, path: list[str]) -> Any:
    """The container at `path`, it and all above it replaced by shallow copies."""
    here: Any = root
    for part in path:
        key: Any = int(part) if isinstance(here, list) else part
        here[key] = copy.copy(here[key])
        here = here[key]
    return here


def _tap(root: nn.Module, path: str, watch: Watch) -> None:
    *parents, leaf = path.split(".")
    container = _copied(root, parents)
    key: Any = int(leaf) if isinstance(container, list) else leaf
    container[key] = Tap(container[key], watch)


def _tap_method(root: nn.Module, path: str, method: str, watch: Watch) -> None:
    """A method has no module of its own: the copy gets an attribute of its name in front of it."""
    module = _copied(root, path.split("."))
    inner = getattr(module, method)

    def tapped(*args: Any) -> Any:
        result = inner(*args)
        watch(args, result)
        return result

    setattr(module, method, tapped)


def _mel(model: VoiceChat, samples: NDArray[np.float32], conventions: Conventions) -> NDArray[np.float32]:
    stream = MelStream(model.mel_filterbank, conventions)
    rows = np.concatenate([stream.push(samples), stream.finish()])
    if not conventions.keeps_last_mel_frame:
        rows[-1] = 0.0
    return rows[None]


def _to_numpy(value: mx.array | NDArray[Any]) -> NDArray[Any]:
    if isinstance(value, mx.array):
        floating = mx.issubdtype(value.dtype, mx.floating)
        value = np.array(value.astype(mx.float32 if floating else mx.int32))
    if not np.isfinite(value).all():
        raise VoiceChatError("an activation is not finite; check the checkpoint with `inspect`")
    return value
