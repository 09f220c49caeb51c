from __future__ import annotations

import pytest
import torch

from reference.audio.stft import inverse_stft, stft
from reference.codec.codec import polar_spectrum
from tests.parity.agreement import assert_agreement
from tests.parity.pair import to_mlx
from tests.parity.tolerances import FLOAT32
from voicechat_mlx.codec.stft import ShortStft
from voicechat_mlx.report.rows import compare

FRAMES = pytest.mark.parametrize("frames", [1, 2, 3, 4, 5, 441])


@FRAMES
def test_the_spectrogram_agrees_from_its_first_frame_to_its_last(frames: int) -> None:
    wave = torch.randn(2, 4 * frames, generator=torch.Generator().manual_seed(frames))
    spectrum = stft(wave, 16, 4)
    theirs = torch.cat([spectrum.real, spectrum.imag], dim=-1)
    assert_agreement([compare("stft", ShortStft(16, 4).transform(to_mlx(wave)), theirs, FLOAT32)])


@FRAMES
@pytest.mark.parametrize("loudness", [-20.0, 0.0, 20.0])
def test_the_inverse_agrees_for_silent_ordinary_and_saturated_magnitudes(frames: int, loudness: float) -> None:
    features = torch.randn(2, frames, 18, generator=torch.Generator().manual_seed(frames)) + 0.0
    features[..., :9] += loudness
    theirs = inverse_stft(polar_spectrum(features), 4)
    transform = ShortStft(16, 4)
    cache = transform.make_cache(2)
    late = transform.inverse(to_mlx(features), cache)
    ours = [late[:, transform.edge :], transform.flush(cache)[:, max(0, transform.edge - late.shape[1]) :]]
    lengths = [part.shape[1] for part in ours]
    assert sum(lengths) == theirs.shape[1]
    rows = [compare("inverse", part, half, FLOAT32) for part, half in zip(ours, theirs.split(lengths, 1), strict=True)]
    assert_agreement(rows)
