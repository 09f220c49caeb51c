"""That the bundled model keeps up with the speaker, and that a seed fixes every byte.

Times are the best of a few: what else the machine does must not decide.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np

import voicechat_mlx as vc
from voicechat_mlx.audio.wav import read_audio
from voicechat_mlx.checkpoint import BUNDLED
from voicechat_mlx.cli.__main__ import main
from voicechat_mlx.cli.common import BUNDLED_QUESTION

FRAME = 1280
LARGEST_FILE = 26_000_000


def test_the_weights_are_small_enough_to_be_installed_along() -> None:
    assert (BUNDLED / "model.safetensors").stat().st_size <= LARGEST_FILE


def test_loading_takes_less_than_two_seconds(model: vc.VoiceChat) -> None:
    """`model`: the libraries are loaded already, and the files have been read once."""
    took = []
    for _ in range(3):
        began = time.perf_counter()
        vc.load()
        took.append(time.perf_counter() - began)
    assert min(took) < 2


def test_answering_a_recording_is_faster_than_real_time(model: vc.VoiceChat) -> None:
    results = [vc.generate(model, BUNDLED_QUESTION) for _ in range(3)]
    factors = [sum(result.seconds.values()) / (0.08 * result.frames) for result in results]
    assert min(factors) < 1


def test_a_live_talk_is_faster_than_real_time_and_says_the_same(model: vc.VoiceChat) -> None:
    samples = np.concatenate([read_audio(BUNDLED_QUESTION), np.zeros(3 * 16000, np.float32)])
    factors = []
    for _ in range(2):
        session, events = vc.Session(model, seed=0), []
        began = time.perf_counter()
        for begin in range(0, len(samples), FRAME):
            events += session.push(samples[begin : begin + FRAME])
        events += session.finish()
        factors.append((time.perf_counter() - began) / (len(samples) / 16000))
        said = "".join(event.text for event in events if isinstance(event, vc.TextDelta))
        assert said == "The capital of France is Paris."
    assert min(factors) < 1


def test_seed_0_gives_the_same_bytes_every_time(tmp_path: Path) -> None:
    for name in ("first", "second"):
        words = ["--audio", str(BUNDLED_QUESTION), "--output-audio", f"{tmp_path}/{name}.wav"]
        assert main(["generate", *words, "--json", f"{tmp_path}/{name}.json", "--seed", "0"]) == 0
    assert (tmp_path / "first.wav").read_bytes() == (tmp_path / "second.wav").read_bytes()
    first, second = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("first", "second"))
    for key in ("text_tokens", "function_tokens", "audio_codes", "user_transcript"):
        assert first[key] == second[key]
