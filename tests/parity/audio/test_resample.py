from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from reference.audio.resample import resample
from tests.parity.agreement import assert_agreement
from tests.parity.tolerances import FLOAT32
from voicechat_mlx.audio.wav import read_audio
from voicechat_mlx.report.rows import compare


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100, 48000])
def test_a_stereo_file_of_any_rate_is_heard_alike(tmp_path: Path, rate: int) -> None:
    time = np.arange(rate) / rate
    stereo = np.stack([0.4 * np.sin(2 * np.pi * 440 * time), 0.3 * np.sin(2 * np.pi * 1250 * time)], axis=1)
    soundfile.write(tmp_path / "tone.wav", stereo, rate, subtype="FLOAT")
    mono = torch.from_numpy(stereo.astype(np.float32).mean(axis=1))
    theirs = resample(mono, rate, 16000)
    assert_agreement([compare(f"{rate} Hz", read_audio(tmp_path / "tone.wav"), theirs, FLOAT32)])
