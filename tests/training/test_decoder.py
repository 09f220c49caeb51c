"""The decoder's refinement: its quick form is the decoder's own, and its ears hear what the recogniser hears."""

from __future__ import annotations

import math

import pytest
import torch

from reference.model import VoiceChat
from reference.training.ears import Ears, Resampler
from reference.training.quick_decoder import QuickDecoder


def test_the_quick_decoder_is_the_decoder(model: VoiceChat) -> None:
    latents = torch.randn(2, 3, model.config.codec_config.latent_dim)
    quick = QuickDecoder(model.codec.decoder, compiled=False)(latents)
    torch.testing.assert_close(quick, model.codec.decoder(latents), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("hertz", [100.0, 1000.0, 6000.0])
def test_the_resampler_keeps_tones_in_place_and_size(hertz: float) -> None:
    samples = 441 * 40
    tone = torch.sin(2 * math.pi * hertz * torch.arange(samples).double() / 22050)
    made = Resampler(22050, 16000)(tone.float().unsqueeze(0))[0]
    expected = torch.sin(2 * math.pi * hertz * torch.arange(320 * 40).double() / 16000).float()
    inside = slice(100, -100)
    torch.testing.assert_close(made[inside], expected[inside], rtol=0, atol=2e-3)


def test_the_resampler_removes_what_the_lower_rate_cannot_hold() -> None:
    tone = torch.sin(2 * math.pi * 9500 * torch.arange(441 * 40) / 22050)
    made = Resampler(22050, 16000)(tone.float().unsqueeze(0))[0]
    assert made[100:-100].abs().max() < 5e-3


def test_ears_hear_no_difference_between_a_sound_and_itself_and_one_between_others(model: VoiceChat) -> None:
    ears = Ears(model)
    one, other = 0.1 * torch.randn(2, 2, 1764 * 4)
    assert float(ears(one, one).max()) == 0.0
    made = other.clone().requires_grad_()
    ears(one, made).sum().backward()
    assert float(ears(one, other).min()) > 0.0
    assert made.grad is not None and float(made.grad.abs().max()) > 0.0
