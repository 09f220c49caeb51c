"""A checkpoint of the real 11B configuration with random weights: python -m tests.bench.real_checkpoint OUT [--bits 4].

What the published one holds, in the same layout and types, 9 GB with a 4-bit language path; nothing that it says means
anything. Made in memory, which takes as much again, and some minutes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from fixtures.random_model import random_model
from fixtures.tiny_tokenizer import save_tokenizer
from tests.bench.real_size import published_config
from voicechat_mlx.config import VoiceChatConfig
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.names import published_name
from voicechat_mlx.precision import Precision

SHARD_BYTES = 2_000_000_000
STORED = Precision(perception_llm=mx.bfloat16, talker=mx.bfloat16, codec_rnnt=mx.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--bits", type=int, choices=(0, 4, 8), default=4, help="of the language path; 0: bfloat16")
    options = parser.parse_args()
    config = published_config()
    model = random_model(VoiceChatConfig.from_dict(config), STORED, bits=options.bits)
    options.out.mkdir(parents=True)
    save_tokenizer(options.out)
    save_weights(options.out, model)
    if options.bits:
        config["quantization"] = config["quantization_config"] = quantisation_map(model, options.bits)
    (options.out / "config.json").write_text(json.dumps(config), encoding="utf-8")


def save_weights(folder: Path, model: VoiceChat) -> None:
    """Files of about 2 GB, and their index."""
    shards: list[dict[str, mx.array]] = [{}]
    size = 0
    for name, tensor in tree_flatten(model.parameters()):
        if size > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][published_name(name)] = tensor
        size += tensor.nbytes
    places = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        mx.save_safetensors(str(folder / file), shard, {"format": "mlx"})
        places |= dict.fromkeys(shard, file)
    total = sum(tensor.nbytes for shard in shards for tensor in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    print(f"{folder}: {len(places)} tensors, {total:,} bytes")


def quantisation_map(model: VoiceChat, bits: int) -> dict[str, object]:
    """For config.json."""
    kinds = (nn.QuantizedLinear, nn.QuantizedEmbedding)
    paths = [published_name(path) for path, module in model.named_modules() if isinstance(module, kinds)]
    entry = {"group_size": 64, "bits": bits}
    return {**entry, **{path: dict(entry) for path in paths}}


if __name__ == "__main__":
    main()
