"""How many launches a frame costs on CUDA, counted on any machine: python -m tests.bench.launches

The published layers in narrow widths. In the place of each kernel, ours or one of MLX's norms, stands an operation that
only counts; what else MLX would start is read from the compiled graph.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from fixtures.random_model import random_model
from tests.cuda.emulator import pretended, unlaunched
from voicechat_mlx.config import (
    AudioConfig,
    CharacterEncoderConfig,
    CodecConfig,
    DecoderConfig,
    EncoderConfig,
    JointConfig,
    MogHeadConfig,
    TextConfig,
    TtsConfig,
    VoiceChatConfig,
)
from voicechat_mlx.duplex import speak, think
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.nn import packed
from voicechat_mlx.nn.cache import Cache, arrays_of, begin_step
from voicechat_mlx.nn.cuda.launch import Kernel
from voicechat_mlx.pipeline import hear, sound, transcribe
from voicechat_mlx.precision import Precision
from voicechat_mlx.session import Session

VIEWS = frozenset(
    [
        "Broadcast",
        "Reshape",
        "ExpandDims",
        "Squeeze",
        "Split",
        "Transpose",
        "Unflatten",
        "Flatten",
        "Slice",
        "Full",
        "Contiguous",
        "Copy",
        "Depends",
    ]
)
"""Operations that start nothing, and the stand-ins, which are counted as they are called."""
NARROW = VoiceChatConfig(
    text_config=TextConfig(
        hidden_size=256,
        intermediate_size=512,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=128,
        mamba_num_heads=16,
        vocab_size=1024,
    ),
    audio_config=AudioConfig(
        encoder=EncoderConfig(d_model=256, subsampling_conv_channels=32),
        decoder=DecoderConfig(pred_hidden=64),
        joint=JointConfig(joint_hidden=64, encoder_hidden=256, pred_hidden=64),
        output_dim=256,
    ),
    tts_config=TtsConfig(
        hidden_size=144,
        intermediate_size=256,
        num_attention_heads=2,
        num_key_value_heads=2,
        latent_size=64,
        character_encoder=CharacterEncoderConfig(
            hidden_size=144, intermediate_size=256, num_attention_heads=2, num_key_value_heads=2
        ),
        mog_head=MogHeadConfig(intermediate_size=256),
    ),
    codec_config=CodecConfig(base_channels=32, latent_dim=64),
)


def main() -> None:
    print("| stage | own kernels | MLX's |\n| --- | ---: | ---: |")
    found = counted()
    for stage, (own, other) in found.items():
        print(f"| {stage} | {own} | {other} |")
    own, other = (sum(column) for column in zip(*found.values(), strict=True))
    print(f"| **frame** | {own} | {other} |")


def counted() -> dict[str, tuple[int, int]]:
    """Stage → our kernels and MLX's operations."""
    return dict(_counted())


def _counted() -> Iterator[tuple[str, tuple[int, int]]]:
    with mock.patch.object(packed, "computes_here", lambda weight: False):
        model = random_model(NARROW, Precision(perception_llm=mx.bfloat16))
    model.talker.embed_subword.tabulate()
    session = Session(model)
    session.push(np.zeros(6 * 1280, np.float32))
    past = session._pipeline._past
    mel, frame = mx.zeros((1, 8, 128)), mx.zeros((1, 1, 256), dtype=model.activations)
    codes, encoded = mx.zeros((1, 1, 31), dtype=mx.int32), mx.zeros((1, 1, 256))
    mx.eval(arrays_of(past), mel, frame, codes, encoded)
    calls: Counter[str] = Counter()

    def stand_in(kernel: Kernel, inputs: Any, _: Any, __: int, ___: int, shapes: Any, dtypes: Any, *____: Any) -> Any:
        calls[kernel.name] += 1
        return unlaunched(inputs, shapes, dtypes)

    def norm(x: mx.array, *_: Any) -> mx.array:
        calls["MLX"] += 1
        return mx.depends([x], [x])[0]

    def count(stage: Any, cache: Cache, *inputs: mx.array) -> tuple[int, int]:
        calls.clear()
        begin_step(cache, 1)
        result = model.run(stage, cache, *inputs)
        others = calls.pop("MLX", 0) + _operations([*_flat(result), *arrays_of(cache)])
        return sum(calls.values()), others

    with (
        pretended(stand_in, 132),
        mock.patch.multiple(mx.fast, rms_norm=norm, layer_norm=norm),
        mock.patch.object(mx, "default_device", lambda: SimpleNamespace(type=mx.DeviceType.gpu)),
    ):
        for part in model.modules():
            if isinstance(part, VoiceChat):
                part.run.compiled = True
            elif hasattr(part, "prepare"):
                part.prepare()
        mx.eval([leaf for _, leaf in tree_flatten(dict(model)) if isinstance(leaf, mx.array)])
        state = past.duplex
        yield "perception", count(hear, past.encoder, mel)
        yield "transcript", count(transcribe, past.rnnt, encoded)
        yield "language model", count(think, state.thinking, frame)
        yield "talker", count(speak, state.speaking, state.thinking.text)
        yield "codec", count(sound, past.codec, codes)


def _flat(result: Any) -> list[mx.array]:
    return list(result) if isinstance(result, tuple | list) else [result]


def _operations(outputs: list[mx.array]) -> int:
    """Of a graph that is not evaluated: what is no view."""
    with tempfile.TemporaryDirectory() as folder:
        mx.export_to_dot(f"{folder}/graph", *outputs)
        names = re.findall(r'label ?= ?"([A-Za-z]\w*)"', Path(f"{folder}/graph").read_text(encoding="utf-8"))
    return sum(name not in VIEWS for name in names)


if __name__ == "__main__":
    main()
