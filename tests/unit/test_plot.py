"""The picture of the timeline: which text stands in which frame, and a PNG that can be opened."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from fixtures.make_tiny import make
from voicechat_mlx.cli.__main__ import main
from voicechat_mlx.cli.common import BUNDLED_QUESTION
from voicechat_mlx.cli.plot import Timeline, Wave, draw
from voicechat_mlx.cli.timeline import labels
from voicechat_mlx.text import RnntPieces


def size(path) -> tuple[int, int]:
    """Width and height from the PNG's own header."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


def timeline(frames: int = 20, **changes: object) -> Timeline:
    question = Wave(samples=np.sin(np.arange(1280 * frames) / 9).astype(np.float32), sample_rate=16000)
    answer = Wave(samples=np.zeros(1764 * frames, np.float32), sample_rate=22050)
    rows = {"transcript": [(3, " what")], "text": [(9, "Paris")], "function": []}
    values = {"frames": frames, "frame_seconds": 0.08, "question": question, "answer": answer}
    return Timeline(**(values | rows | changes))


def test_texts_of_one_frame_are_joined_and_frames_without_text_left_out() -> None:
    pieces = ("▁wh", "at", "<en-US>", "▁is")
    heard = [(2, 0), (2, 1), (4, 2), (7, 3)]
    assert labels(heard, RnntPieces(pieces).push) == [(2, "what"), (7, " is")]


def test_the_picture_grows_with_the_talk_and_has_a_row_for_functions_only_when_there_is_one(tmp_path) -> None:
    draw(timeline(), tmp_path / "short.png")
    draw(timeline(200), tmp_path / "long.png")
    draw(timeline(function=[(9, "f()")]), tmp_path / "function.png")
    assert size(tmp_path / "short.png")[0] == 800
    assert size(tmp_path / "long.png")[0] == 2500  # 200 frames at 12 dots and a margin of 100
    assert size(tmp_path / "function.png")[1] > size(tmp_path / "short.png")[1]


@pytest.mark.parametrize("text", ["$x^2$", "\\frac", "日本", "🙂", "\0", "\n", " ", "antidisestablishmentarianism"])
def test_any_text_can_be_drawn(tmp_path, text) -> None:
    draw(timeline(text=[(0, text)], transcript=[(19, text)]), tmp_path / "a.png")
    assert size(tmp_path / "a.png")[0] == 800


def test_an_empty_recording_and_one_frame_can_be_drawn(tmp_path) -> None:
    nothing = Wave(samples=np.zeros(0, np.float32), sample_rate=16000)
    draw(timeline(1, question=nothing, transcript=[], text=[]), tmp_path / "a.png")
    assert size(tmp_path / "a.png")[0] == 800


def test_generate_draws_its_timeline_as_png_also_under_a_name_without_an_ending(tmp_path) -> None:
    words = ["-m", str(make(tmp_path / "model", "fp32")), "--extra-decoding-seconds", "0"]
    words += [
        "--audio",
        str(BUNDLED_QUESTION),
        "--output-audio",
        f"{tmp_path}/a.wav",
        "--plot",
        f"{tmp_path}/picture",
    ]
    assert main(["generate", *words]) == 0
    assert size(tmp_path / "picture")[1] > 300
