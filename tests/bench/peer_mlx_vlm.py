"""mlx-vlm under the clock, in an environment of its own: PEER_PYTHON peer_mlx_vlm.py CHECKPOINT QUESTION.

Its stage times are those that it keeps itself (`profile=True`); it waits for each stage, profiled or not.
`BENCH_OPENBLAS=1` lends it the BLAS that we take; without, it uses the reference BLAS of MLX's wheel.
"""

from __future__ import annotations

import ctypes
import os
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

OPENBLAS = "libopenblas.so.0" if os.environ.get("BENCH_OPENBLAS") == "1" else None
if OPENBLAS:
    ctypes.CDLL(OPENBLAS, mode=ctypes.RTLD_GLOBAL)  # before anything imports mlx.core

import measure  # noqa: E402  (lies beside this file)
import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from mlx_vlm.utils import load_model  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

STAGE_FIELDS = {
    "perception": "perception_ms",
    "rnnt": "rnnt_ms",
    "llm": "language_ms",
    "talker": "tts_ms",
    "codec": "codec_ms",
}


class Peer:
    """Its session object over a loaded model."""

    offline_modes = ("cached", "default")

    def __init__(self, folder: Path) -> None:
        model = load_model(folder, lazy=False, strict=True)
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        self._session = model.create_session(tokenizer)

    def stream(self, frames: list[measure.Samples]) -> list[dict[str, float]]:
        session = self._session.create_streaming_session(system_prompt="", profile=True)
        totals = []
        for frame in frames:
            begin = time.perf_counter()
            session.push_audio(frame)
            totals.append((time.perf_counter() - begin) * 1e3)
        return [
            {stage: getattr(timing, field) for stage, field in STAGE_FIELDS.items()} | {"total": total}
            for timing, total in zip(session.profile.frames, totals, strict=True)
        ]

    def answer(self, samples: measure.Samples, mode: str) -> measure.Answer:
        result = self._session.generate(mx.array(samples), system_prompt="", use_language_cache=mode == "cached")
        return measure.Answer(
            text=np.asarray(result.text_tokens),
            codes=np.asarray(result.audio_codes),
            audio=np.asarray(result.audio),
            transcript=result.user_transcript or "",
        )


def describe() -> dict[str, Any]:
    """Versions, and which BLAS serves MLX."""
    versions = {name: version(name) for name in ("mlx-vlm", "mlx-audio", "mlx")}
    return versions | {"BLAS": OPENBLAS or "MLX's own"}


if __name__ == "__main__":
    measure.main(Peer, describe)
