"""Both sides of a comparison on one checkpoint, of which only the block in hand is in memory.

Each side has the whole model's structure without a number in it. `filled("llm.layers.3")` reads the tensors under that
name, and they are gone when the block ends. Unusual: PyTorch is imported at the top, so nothing may import this module
but `verify`, inside its function.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten
from safetensors import safe_open
from torch import Tensor

import reference.model
from reference.weights import FROM_MLX_LAYOUT, dequantise, read_vocabulary, to_torch_layout
from voicechat_mlx.checkpoint import Checkpoint
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.names import canonical_name
from voicechat_mlx.precision import Precision
from voicechat_mlx.text import CharacterTable, TextTokenizer
from voicechat_mlx.weights import SIZED_BY_WEIGHTS, survey

ROWS_AT_ONCE = 4096
"""Rows of a packed weight that the twin unpacks in one go: its bits take 32 bytes a number meanwhile."""
SPELLER = "talker.embed_subword"


class MlxSide:
    """The model under test."""

    def __init__(self, checkpoint: Checkpoint, chosen: Precision) -> None:
        self._checkpoint, self._precision = checkpoint, chosen
        self._report = survey(VoiceChat(checkpoint.config), checkpoint.tensors(), checkpoint.config)

    @property
    def language_dtype(self) -> mx.Dtype:
        """Activations of perception and language model."""
        return self._precision.perception_llm

    @property
    def talker_dtype(self) -> mx.Dtype:
        """Activations of the talker."""
        return self._precision.talker

    @contextmanager
    def filled(self, *prefixes: str) -> Iterator[VoiceChat]:
        """A model of which only the parameters under these canonical names may be used."""
        model = VoiceChat(self._checkpoint.config)
        specs = {path: {"group_size": size, "bits": bits} for path, (size, bits) in self._report.quantised.items()}
        nn.quantize(model, class_predicate=lambda path, _: under(path, prefixes) and specs.get(path, False))
        tensors = {canonical_name(name): tensor for name, tensor in self._checkpoint.tensors().items()}
        declared: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
        filled = [(name, self._placed(name, tensors[name])) for name in declared if under(name, prefixes)]
        mx.eval(filled)
        model.update(tree_unflatten(filled))
        self._prepare(model, prefixes)
        del tensors, filled
        try:
            yield model
        finally:
            model.clear()  # whoever still holds it, holds no numbers
            mx.clear_cache()

    def _placed(self, name: str, tensor: mx.array) -> mx.array:
        """In MLX's layout and the chosen precision."""
        if name in self._report.permutations:
            tensor = mx.contiguous(mx.transpose(tensor, self._report.permutations[name]))
        return tensor.astype(self._precision.dtype(name, tensor.dtype))

    def _prepare(self, model: VoiceChat, prefixes: tuple[str, ...]) -> None:
        """Derive what the filled modules keep ready, as loading does."""
        owners = (*prefixes, *(prefix.rpartition(".")[0] for prefix in prefixes))
        for path, module in model.named_modules():
            if module is not model and hasattr(module, "prepare") and (under(path, prefixes) or path in owners):
                module.prepare()
        if SPELLER in prefixes:
            table = CharacterTable.build(
                TextTokenizer(self._checkpoint.tokenizer).vocabulary,
                vocab_size=self._checkpoint.config.text_config.vocab_size,
                char_vocab_size=self._checkpoint.config.tts_config.character_encoder.char_vocab_size,
            )
            model.talker.embed_subword.set_characters(mx.array(table.indices), mx.array(table.lengths))


class TwinSide:
    """The reference, in float32."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._tokenizer = checkpoint.tokenizer
        self._files: dict[str, tuple[Path, str]] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for path, header in checkpoint.headers.items():
            for published, tensor in header.items():
                name = canonical_name(published)
                if name is not None:
                    self._files[name], shapes[name] = (path, published), tensor.shape
        continuation, special = (shapes[name][0] for name in SIZED_BY_WEIGHTS)
        with torch.device("meta"):
            self._model = reference.model.VoiceChat(checkpoint.config, (continuation, special)).eval()
        self._model.requires_grad_(False)
        self._empty = dict(self._model.state_dict())
        self._permutations = {
            f"{path}.weight": FROM_MLX_LAYOUT[type(module)]
            for path, module in self._model.named_modules()
            if type(module) in FROM_MLX_LAYOUT
        }

    @contextmanager
    def filled(self, *prefixes: str) -> Iterator[reference.model.VoiceChat]:
        """The model, of which only the parameters under these canonical names may be used."""
        names = [name for name in self._empty if under(name, prefixes)]
        self._place({name: self._read(name) for name in names})
        if SPELLER in prefixes:
            self._model.talker.embed_subword.set_vocabulary(read_vocabulary(self._tokenizer))
        try:
            yield self._model
        finally:
            self._place({name: self._empty[name] for name in names})

    def _place(self, state: dict[str, Tensor]) -> None:
        self._model.load_state_dict(state, strict=False, assign=True)
        self._model.requires_grad_(False)

    def _read(self, name: str) -> Tensor:
        """One parameter: dequantised, in torch's layout, float32 or int64."""
        shape = tuple(self._empty[name].shape)
        tensor = self._stored(name)
        if tensor.dtype == torch.uint32:
            return self._unpacked(name.removesuffix(".weight"), tensor, shape)
        tensor = tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)
        return to_torch_layout(name, tensor, shape, self._permutations[name]) if name in self._permutations else tensor

    def _unpacked(self, path: str, packed: Tensor, shape: tuple[int, ...]) -> Tensor:
        scales, biases = self._stored(f"{path}.scales"), self._stored(f"{path}.biases")
        weight = torch.empty(shape)
        for begin in range(0, shape[0], ROWS_AT_ONCE):
            rows = slice(begin, begin + ROWS_AT_ONCE)
            weight[rows] = dequantise(packed[rows], scales[rows], biases[rows], shape[1])
        return weight

    def _stored(self, name: str) -> Tensor:
        path, published = self._files[name]
        with safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(published)
            return tensor


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Both sides, filled together."""

    checkpoint: Checkpoint
    mlx: MlxSide
    twin: TwinSide

    @classmethod
    def open(cls, checkpoint: Checkpoint, chosen: Precision, against: Checkpoint | None = None) -> Pair:
        """The same checkpoint on both sides, or another on the twin's. Reads headers only."""
        return cls(checkpoint=checkpoint, mlx=MlxSide(checkpoint, chosen), twin=TwinSide(against or checkpoint))

    @contextmanager
    def filled(self, *prefixes: str) -> Iterator[tuple[Any, Any]]:
        """(MLX model, twin) with these parameters in memory."""
        with self.mlx.filled(*prefixes) as ours, self.twin.filled(*prefixes) as theirs:
            yield ours, theirs


def under(name: str, prefixes: tuple[str, ...]) -> bool:
    """Whether a dotted name is one of these or lies below one."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def to_mlx(x: Tensor, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Floats in the given dtype, ids as int32."""
    return mx.array(x.numpy()).astype(dtype if x.is_floating_point() else mx.int32)


def to_torch(x: mx.array) -> Tensor:
    """Float32 or integers."""
    return torch.from_numpy(np.array(x.astype(mx.float32) if mx.issubdtype(x.dtype, mx.floating) else x))
