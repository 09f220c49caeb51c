"""What a frame costs the host on CUDA, counted without a GPU."""

from __future__ import annotations

import gc
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from fixtures.random_model import random_model
from tests.bench.launches import counted
from tests.cuda.emulator import pretended, unlaunched
from tests.cuda.test_kernels import TALKATIVE
from voicechat_mlx import duplex
from voicechat_mlx.config import EncoderConfig
from voicechat_mlx.conventions import MLX
from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.cache import arrays_of
from voicechat_mlx.nn.cuda.launch import Kernel
from voicechat_mlx.perception.conformer import ConformerBlock
from voicechat_mlx.precision import Precision

MOST = 270
"""Launches of a frame at the published number of layers: 261, and a few for what may yet be needed."""


def test_a_frame_needs_no_more_launches_than_it_did() -> None:
    assert sum(own + other for own, other in counted().values()) <= MOST


def test_what_nobody_holds_stays_inside_a_launch() -> None:
    """Each output costs the host a few microseconds: of a layer's 17 results only what is read later is one."""
    layers, outputs = [ConformerBlock(EncoderConfig(d_model=256, n_heads=2)) for _ in range(3)], []
    for layer in layers:
        layer.set_dtype(mx.bfloat16)
        for part in layer.modules():
            if hasattr(part, "prepare"):
                part.prepare()

    def call(kernel: Kernel, inputs: Any, _: Any, __: int, ___: int, shapes: Any, dtypes: Any, *____: Any) -> Any:
        outputs.append([name for name in kernel.signature.outputs if name.startswith("out")])
        return unlaunched(inputs, shapes, dtypes)

    x = mx.zeros((1, 1, 256), dtype=mx.bfloat16)
    caches = [layer.make_cache(1, mx.bfloat16) for layer in layers]
    before = [array for cache in caches for array in arrays_of(cache)]
    gc.disable()  # nothing may hang on when Python looks for cycles
    try:
        with pretended(call, 132), cuda.meetings(), cuda.chaining():
            for layer, cache in zip(layers, caches, strict=True):
                x = layer(x, cache)
            cuda.settled(x)
    finally:
        gc.enable()
    assert [len(names) for names in outputs] == [4, 4, 4]  # the sum, two windows, the convolution's tail
    moved = [array for cache in caches for array in arrays_of(cache)]
    assert all(isinstance(array, mx.array) for array in moved)
    assert sum(new is not old for new, old in zip(moved, before, strict=True)) == 3 * 3


def test_a_prompt_of_one_token_reaches_every_attention_layer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its kernel fills a buffer in place: it runs only if its result, too, is asked for, though nobody reads that."""
    text = replace(TALKATIVE.text_config, hybrid_override_pattern="M*-*-", num_hidden_layers=5)
    model = random_model(replace(TALKATIVE, text_config=text), Precision())
    state = duplex.start(model, [5], 0, MLX, 100)
    asked: list[Any] = []

    def call(kernel: Kernel, inputs: Any, _: Any, __: int, ___: int, shapes: Any, dtypes: Any, *____: Any) -> Any:
        outputs = unlaunched(inputs, shapes, dtypes)
        return [mx.arctanh(each) for each in outputs] if kernel.name == "attend" else outputs

    with pretended(call, 132), monkeypatch.context() as patched:
        patched.setattr(duplex.mx, "async_eval", lambda *arrays: asked.append(arrays))
        list(duplex.hear_prompt(model, state, [5]))
    hidden, arrays = asked[0]
    mx.export_to_dot(str(tmp_path / "graph"), hidden, *arrays)
    assert len(re.findall("ArcTanh", (tmp_path / "graph").read_text(encoding="utf-8"))) == 2
