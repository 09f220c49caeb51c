"""A source of the publisher's real size, 44 GB, in a few MB of disk: python -m tests.bench.sparse_publisher OUT.

Names, shapes, types and config are those of the real file; each tensor begins with 4 KiB of noise and is a hole from
there on. OUT/publisher is the source, OUT/base the folder for --tokenizer. Nothing can be learnt from it about quality.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from mlx.utils import tree_flatten

from fixtures.tiny_config import rnnt_pieces
from fixtures.tiny_tokenizer import save_tokenizer
from tests.publisher import base_config, nemo_config, write_json
from voicechat_mlx.config import VoiceChatConfig
from voicechat_mlx.convert.nemo import spelled_out
from voicechat_mlx.layout import KERNEL_NAMES, KERNELS, transposed_convolutions
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.names import published_name
from voicechat_mlx.weights import SIZED_BY_WEIGHTS

NOISE_BYTES = 4096
NOT_NEEDED = {
    "stt_model.perception.preprocessor.featurizer.window": (400,),
    "stt_model.perception.preprocessor.featurizer.fb": (1, 128, 257),
    "tts_model.tts_model.audio_prompt_projection_W": (1152, 1152),
}


def real_shapes(config: VoiceChatConfig) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Every tensor of the real file → type and torch's shape."""
    transposed = transposed_convolutions(config.codec_config)
    entries = {name: ("F32", shape) for name, shape in NOT_NEEDED.items()}
    for name, array in tree_flatten(VoiceChat(config).parameters()):
        kinds = [kind for pattern, kind in KERNEL_NAMES.items() if pattern.fullmatch(name)]
        shape = array.shape
        if name in transposed or kinds:
            axes = KERNELS["conv_transpose1d" if name in transposed else kinds[0]]
            shape = tuple(shape[axes.index(axis)] for axis in range(len(axes)))
        if name in SIZED_BY_WEIGHTS:
            shape = (config.text_config.vocab_size + name.endswith("is_continuation"),)
        integer = not str(array.dtype).startswith(("mlx.core.float", "mlx.core.bfloat"))
        entries[published_name(name)] = ("I64" if integer else "F32", shape)
    return entries


def write_sparse(path: Path, entries: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    """A safetensors file with noise at the beginning of each tensor."""
    header, end = {}, 0
    for name, (dtype, shape) in sorted(entries.items()):
        start, end = end, end + (8 if dtype == "I64" else 4) * int(np.prod(shape))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    generator = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in header.values():
            start, stop = entry["data_offsets"]
            if entry["dtype"] == "F32":
                file.seek(8 + len(text) + start)
                count = min(NOISE_BYTES, stop - start) // 4
                file.write(generator.normal(0, 0.02, count).astype(np.float32).tobytes())
        file.truncate(8 + len(text) + end)


def main(out: Path) -> None:
    """Write both folders."""
    source, base = out / "publisher", out / "base"
    source.mkdir(parents=True)
    base.mkdir()
    config = spelled_out(VoiceChatConfig(rnnt_vocabulary=tuple(rnnt_pieces(1024))))
    save_tokenizer(base)
    write_json(base / "config.json", base_config(config["text_config"]))
    write_json(source / "config.json", nemo_config(config))
    entries = real_shapes(VoiceChatConfig())
    write_sparse(source / "model.safetensors", entries)
    numbers = sum(int(np.prod(shape)) for _, shape in entries.values())
    size = (source / "model.safetensors").stat().st_size
    print(f"{source}: {len(entries)} tensors, {numbers:,} numbers, {size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
