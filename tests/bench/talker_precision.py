"""How many codes a talker in less than float32 shares with one in float32: python -m tests.bench.talker_precision

Teacher-forced: both hear the same text and the same earlier codes, and draw by the same random numbers, so a code that
differs is that frame's own. Of the bundled model, which is trained, or `--real-size`, whose weights are random.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

import voicechat_mlx as vc
from fixtures.random_model import random_model
from voicechat_mlx.config import MODEL_TYPE, VoiceChatConfig
from voicechat_mlx.conventions import MLX
from voicechat_mlx.duplex import Speaking, speak
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.precision import precision

QUESTION = Path(__file__).parents[2] / "fixtures" / "question.wav"
TALKERS = ("float32", "mixed", "bfloat16")
SILENT_LANGUAGE_MODEL = {"hybrid_override_pattern": "M-", "num_hidden_layers": 2, "vocab_size": 4096}
"""The talker does not need it, and a laptop has no room for it."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--real-size", action="store_true")
    parser.add_argument("--frames", type=int, default=100)
    options = parser.parse_args()
    text = text_ids(options.frames, options.real_size)
    taught: NDArray[np.int32] | None = None
    print("| talker | codes as in float32 | first eight levels | frames wholly equal | ms a frame |")
    print("|---|---:|---:|---:|---:|")
    for name in TALKERS:
        model = talker(name) if options.real_size else vc.load(dtype=name)
        began = time.perf_counter()
        codes = spoken(model, text, taught)
        seconds = time.perf_counter() - began
        taught = codes if taught is None else taught
        same = codes == taught
        found = same.mean(), same[:, :8].mean(), same.all(axis=1).mean()
        print(
            f"| {name} | {found[0]:.1%} | {found[1]:.1%} | {found[2]:.1%} | {seconds / len(text) * 1e3:.0f} |",
            flush=True,
        )
        del model
        gc.collect()
        mx.clear_cache()


def text_ids(frames: int, real_size: bool) -> list[int]:
    """What the talker says: arbitrary text, or the bundled model's answer to its question."""
    if real_size:
        return np.random.default_rng(0).integers(32, 288, frames).tolist()
    said = vc.generate(vc.load(), QUESTION, extra_decoding_seconds=20.0).text_tokens
    return [int(id) for id in said[:frames]]


def talker(name: str) -> VoiceChat:
    """The published configuration with random weights, but for its language model."""
    config = VoiceChatConfig.from_dict({"model_type": MODEL_TYPE, "text_config": SILENT_LANGUAGE_MODEL})
    return random_model(config, precision(name))


def spoken(model: VoiceChat, text: Sequence[int], taught: NDArray[np.int32] | None) -> NDArray[np.int32]:
    """The codes [frames, Q] that follow each text id, after the taught codes or else after its own."""
    state = Speaking(model.voice_prompt(MLX), seed=0)
    found = []
    for position, id in enumerate(text):
        model.run(speak, state, mx.array([[id]], dtype=mx.uint32))
        mx.eval(state.codes)
        found.append(np.asarray(state.codes)[0, 0])
        if taught is not None:
            state.codes = mx.array(taught[position])[None, None]
    return np.stack(found)


if __name__ == "__main__":
    main()
