"""Ours at the real 11B size with random weights made on the device: python -m tests.bench.real_size [--bits 4].

`--talker` chooses the talker's precision; `tests.bench.talker_precision` counts the codes that it changes.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

import mlx.core as mx
import numpy as np

from fixtures.random_model import random_model
from fixtures.tiny_config import TINY
from voicechat_mlx.benchmark import machine, run_benchmark
from voicechat_mlx.config import MODEL_TYPE, VoiceChatConfig
from voicechat_mlx.precision import precision

FRAME_SAMPLES = 1280
PROMPT = "You are helpful, be concise ok"
"""30 characters, one id each in the stand-in tokenizer."""


def published_config() -> dict[str, object]:
    """The real sizes in the published schema, as a JSON object."""
    config = asdict(VoiceChatConfig.from_dict({"model_type": MODEL_TYPE}))
    for name in ("unknown", "quantization", "rnnt_vocabulary", "default_system_prompt"):
        config.pop(name)
    config["text_config"].pop("time_step_limit")
    config["audio_config"]["encoder"]["att_context_size"] = [
        list(config["audio_config"]["encoder"]["att_context_size"])
    ]
    config["rnnt_vocabulary"] = [f"p{i}" for i in range(1024)]
    return {**config, "architectures": TINY.get("architectures")}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bits", type=int, default=0)
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--talker", choices=["float32", "mixed", "bfloat16"], default="float32")
    parser.add_argument("--write-config", type=Path)
    options = parser.parse_args()
    if options.write_config:
        options.write_config.write_text(json.dumps(published_config()), encoding="utf-8")
        return
    chosen = replace(precision(options.talker), perception_llm=mx.bfloat16)
    model = random_model(VoiceChatConfig.from_dict({"model_type": MODEL_TYPE}), chosen, bits=options.bits)
    weights = mx.get_active_memory()
    pcm = (np.random.default_rng(0).normal(size=options.frames * FRAME_SAMPLES) * 0.1).astype(np.float32)
    found = asdict(run_benchmark(model, pcm, PROMPT)) | machine()
    del found["total_ms"], found["stage_ms"]
    print(json.dumps({"bits": options.bits, "talker": options.talker, "weights_GB": weights / 1e9, **found}))


if __name__ == "__main__":
    main()
