"""The two sides: one checkpoint loaded twice, as MLX and as the PyTorch twin, and the same random numbers for both."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from torch import Tensor

import reference.model
import voicechat_mlx
from fixtures.make_tiny import make
from reference.weights import load_model

Draws = Callable[[int], tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Both models of one checkpoint."""

    folder: Path
    mlx: voicechat_mlx.VoiceChat
    twin: reference.model.VoiceChat
    loops: dict[Any, dict[str, Tensor]] = field(default_factory=dict)
    """What the twin computed in each run so far; see `whole_loop`."""

    def with_mlx(self, model: voicechat_mlx.VoiceChat) -> Pair:
        """Another MLX model against the same twin."""
        return dataclasses.replace(self, mlx=model)

    @property
    def language_dtype(self) -> mx.Dtype:
        """Activations of perception and language model on the MLX side."""
        return self.mlx.perception.proj.bias.dtype

    @property
    def talker_dtype(self) -> mx.Dtype:
        """Activations of the talker on the MLX side."""
        return self.mlx.talker.null_emb.dtype


@dataclass(frozen=True)
class Checkpoints:
    """Tiny checkpoints below `root`, each made and loaded once."""

    root: Path
    pairs: dict[str, Pair] = field(default_factory=dict)

    def pair(self, variant: str = "fp32", overrides: Mapping[str, Any] | None = None) -> Pair:
        """`overrides` change single values of config.json: `{"tts_config": {"noise_scale": 0.0}}`."""
        key = json.dumps([variant, overrides])
        if key not in self.pairs:
            folder = make(self.root / str(len(self.pairs)), variant)
            if overrides:
                _edit(folder / "config.json", overrides)
            self.pairs[key] = load_pair(folder)
        return self.pairs[key]


def load_pair(folder: Path) -> Pair:
    """A checkpoint in float32 arithmetic on both sides."""
    twin = load_model(folder).requires_grad_(False)
    return Pair(folder=folder, mlx=voicechat_mlx.load(folder, dtype="float32"), twin=twin)


def to_mlx(x: Tensor, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Floats in the given dtype, ids as int32."""
    return mx.array(x.numpy()).astype(dtype if x.is_floating_point() else mx.int32)


def to_torch(x: mx.array) -> Tensor:
    """Float32 or integers."""
    return torch.from_numpy(np.array(x))


def shared_draws(model: voicechat_mlx.VoiceChat, seed: int) -> Draws:
    """The numbers that an MLX session with this seed draws, for the twin.

    A session holds one key. Each talker step, from position 1 on, splits it in two and draws from the second.
    """

    def steps() -> Iterator[tuple[Tensor, Tensor]]:
        key = mx.random.key(seed)
        while True:
            key, own = mx.random.split(key)
            drawn = model.talker.draws(own)
            yield to_torch(drawn.gumbel), to_torch(drawn.normal)

    stream, drawn = steps(), list[tuple[Tensor, Tensor]]()

    def draws(step: int) -> tuple[Tensor, Tensor]:
        while len(drawn) <= step:
            drawn.append(next(stream))
        return drawn[step]

    return draws


def _edit(path: Path, overrides: Mapping[str, Any]) -> None:
    """Change values of a JSON file in place. The weights stay as they are, so sizes must too."""
    config = json.loads(path.read_text(encoding="utf-8"))
    _merge(config, overrides)
    path.write_text(json.dumps(config), encoding="utf-8")


def _merge(values: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    for key, value in overrides.items():
        if isinstance(value, Mapping):
            _merge(values[key], value)
        else:
            values[key] = value
