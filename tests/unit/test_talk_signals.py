"""`talk` when it is asked to stop."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import soundfile

import voicechat_mlx
from tests import models
from voicechat_mlx.cli.__main__ import main
from voicechat_mlx.cli.talk_partners import Local


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_talk_and_what_was_answered_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    push, before = Local.push, signal.getsignal(number)

    def push_and_stop(self: Local, samples: Any) -> Any:
        os.kill(os.getpid(), number)
        return push(self, samples)

    monkeypatch.setattr(voicechat_mlx, "load", lambda *_, **__: models.hasty())
    monkeypatch.setattr(Local, "push", push_and_stop)
    soundfile.write(tmp_path / "long.wav", models.speech(10.0), 16000)
    kept = tmp_path / "answer.wav"
    assert main(["talk", "--input-file", f"{tmp_path}/long.wav", "--output-file", str(kept)]) == 0
    assert 0 < soundfile.info(kept).duration < 5  # one block of the ten seconds, whole
    assert signal.getsignal(number) == before
