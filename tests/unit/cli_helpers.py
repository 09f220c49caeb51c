"""What the tests of the commands share."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import voicechat_mlx
from voicechat_mlx.cli.__main__ import main
from voicechat_mlx.cli.common import BUNDLED_QUESTION

QUESTION = str(BUNDLED_QUESTION)


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder with an old answer in it, as the working directory; loading a model is forbidden."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(voicechat_mlx, "load", refuse)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.wav").write_bytes(b"old")
    return tmp_path


def result(**values: object) -> voicechat_mlx.VoiceChatResult:
    """A result of one frame, made by hand."""
    ids = np.zeros(1, np.int32)
    fields = {"user_transcript": "", "text": "Hello", "function_text": "", "audio": np.zeros(1764, np.float32)}
    fields |= {
        "sample_rate": 22050,
        "text_tokens": ids,
        "function_tokens": ids,
        "audio_codes": np.zeros((1, 31), np.int32),
    }
    fields |= {"transcript_tokens": ids[:0], "transcript_frames": ids[:0], "frames": 1, "seconds": {"codec": 0.5}}
    return voicechat_mlx.VoiceChatResult(**(fields | values))


def check_refused(capsys: pytest.CaptureFixture[str], words: list[str], message: str, code: int = 2) -> None:
    before = contents(Path.cwd())
    assert main(words) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("voicechat: ") and captured.err.count("\n") == 1, captured.err
    assert re.search(message, captured.err), captured.err
    assert contents(Path.cwd()) == before


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}
