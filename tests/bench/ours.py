"""Our side under the clock: python -m tests.bench.ours CHECKPOINT QUESTION. `VOICECHAT_NO_OPENBLAS=1` is heeded."""

from __future__ import annotations

import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import voicechat_mlx as vc
from tests.bench import measure
from voicechat_mlx.blas import preload_openblas


class Ours:
    """A loaded model."""

    offline_modes = ("only",)

    def __init__(self, folder: Path) -> None:
        self._model = vc.load(folder)

    def stream(self, frames: list[measure.Samples]) -> list[dict[str, float]]:
        session = TimedSession(self._model)
        return [session.push(frame) for frame in frames]

    def answer(self, samples: measure.Samples, mode: str) -> measure.Answer:
        result = vc.generate(self._model, samples, system_prompt="", extra_decoding_seconds=0)
        return measure.Answer(
            text=result.text_tokens, codes=result.audio_codes, audio=result.audio, transcript=result.user_transcript
        )


class TimedSession:
    """A session whose pushes tell how long they took. On a CPU each stage is done before the next begins."""

    def __init__(self, model: vc.VoiceChat) -> None:
        self._session = vc.Session(model, system_prompt="")

    def push(self, frame: measure.Samples) -> dict[str, float]:
        """80 ms of samples → milliseconds per stage and in all."""
        before = self.seconds
        begin = time.perf_counter()
        self._session.push(frame)
        total = time.perf_counter() - begin
        spent = {stage: seconds - before[stage] for stage, seconds in self.seconds.items()} | {"total": total}
        return {stage: seconds * 1e3 for stage, seconds in spent.items()}

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds per stage so far; the mel frontend counts as perception."""
        so_far = Counter(self._session.seconds)
        so_far["perception"] += so_far["frontend"]
        return {stage: so_far[stage] for stage in measure.STAGES}


def describe() -> dict[str, Any]:
    """Versions, and which BLAS serves MLX."""
    return {"voicechat-mlx": vc.__version__, "mlx": version("mlx"), "BLAS": preload_openblas() or "MLX's own"}


if __name__ == "__main__":
    measure.main(Ours, describe)
