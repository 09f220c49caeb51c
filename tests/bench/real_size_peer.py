"""mlx-vlm at the real 11B size with random weights made on the device: ms per 80 ms frame, streaming and offline.

    PYTHONPATH=<mlx-vlm and mlx-audio> python tests/bench/real_size_peer.py CONFIG.json [--bits 4]

CONFIG.json is a config of the published schema; `python -m tests.bench.real_size --write-config FILE` writes one.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_vlm.models.nemotron_voicechat import Model, ModelConfig

FRAME_SAMPLES = 1280
WARM_UP = 5
LANGUAGE_PATH = ("stt_model.embed_tokens", "stt_model.lm_head", "stt_model.function_head", "stt_model.llm.")


class AnyTokenizer:
    """A vocabulary of the right size: 256 single characters and longer tokens."""

    def __init__(self, size: int) -> None:
        singles = {chr(0x100 + i): 32 + i for i in range(256)}
        self._vocabulary = singles | {chr(0x100 + i % 256) * (2 + i % 9) + str(i): i for i in range(288, size)}

    def get_vocab(self) -> dict[str, int]:
        return self._vocabulary

    def encode(self, text: str, **_: Any) -> list[int]:
        return [32 + ord(character) % 256 for character in text]

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(chr(97 + id % 26) for id in ids)


def random_model(config: ModelConfig, bits: int) -> Model:
    model = Model(config)
    drawn = []
    for name, declared in tree_flatten(model.parameters()):
        if mx.issubdtype(declared.dtype, mx.floating):
            fan_in = declared.shape[-1] if declared.ndim > 1 else 1
            scale = fan_in**-0.5 if declared.ndim > 1 else 0.05
            array = mx.random.normal(declared.shape, dtype=mx.bfloat16) * scale
            array = array.astype(mx.float32 if "A_log" in name else mx.bfloat16)
            mx.eval(array)
            drawn.append((name, array))
    model.update(tree_unflatten(drawn))
    del drawn
    if bits:
        nn.quantize(
            model,
            64,
            bits,
            class_predicate=lambda path, module: path.startswith(LANGUAGE_PATH) and hasattr(module, "to_quantized"),
        )
    mx.eval(model.parameters())
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--bits", type=int, default=0)
    parser.add_argument("--frames", type=int, default=40)
    options = parser.parse_args()
    values = json.loads(options.config.read_text(encoding="utf-8"))
    config = ModelConfig.from_dict(values)
    model = random_model(config, options.bits)
    session = model.create_session(AnyTokenizer(config.text_config.vocab_size))
    pcm = (np.random.default_rng(0).normal(size=(options.frames + WARM_UP) * FRAME_SAMPLES) * 0.1).astype(np.float32)
    prompt = "You are helpful, be concise ok"
    mx.reset_peak_memory()
    stream = session.create_streaming_session(system_prompt=prompt, profile=True)
    totals = []
    for begin in range(0, len(pcm), FRAME_SAMPLES):
        started = time.perf_counter()
        stream.push_audio(pcm[begin : begin + FRAME_SAMPLES])
        totals.append((time.perf_counter() - started) * 1e3)
    fields = ("perception_ms", "rnnt_ms", "language_ms", "tts_ms", "codec_ms")
    stages = {field: float(np.median([getattr(t, field) for t in stream.profile.frames[WARM_UP:]])) for field in fields}
    peak = mx.get_peak_memory()
    offline = []
    for _ in range(2):
        started = time.perf_counter()
        result = session.generate(mx.array(pcm[: 25 * FRAME_SAMPLES]), system_prompt="", use_language_cache=True)
        mx.eval(result.audio)
        offline.append((time.perf_counter() - started) * 1e3 / len(result.text_tokens))
    median, p95 = np.percentile(totals[WARM_UP:], [50, 95])
    print(
        json.dumps(
            {
                "bits": options.bits,
                "median": median,
                "p95": p95,
                **stages,
                "offline": min(offline),
                "peak_GB": peak / 1e9,
            }
        )
    )


if __name__ == "__main__":
    main()
