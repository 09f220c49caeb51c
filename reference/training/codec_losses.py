"""The codec's two losses: first encoder and decoder joined by noise, then through the codebooks.

Unusual: while nothing is quantised, latents are divided by their own spread. Otherwise the quickest way down is to
make them smaller than the noise, and a decoder that hears nothing of them does not learn to listen again.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reference.audio.stft import stft
from reference.codec.codec import Codec
from reference.model import VoiceChat
from reference.training.codec_sounds import CodecSettings, Sounds
from reference.training.quantiser import BookLearner
from reference.training.spectral import SpectralDistance, feature_distance, tone_distance

LATENT_NOISE = 0.1
"""Added while nothing is quantised, in units of the latents' spread: how finely they may be used."""


class CodecTraining(nn.Module):
    """The two losses, with what they need. Everything in it is part of the resumable state."""

    def __init__(self, model: VoiceChat, settings: CodecSettings, sounds: Sounds) -> None:
        super().__init__()
        self.codec, self.settings = model.codec, settings
        self.rows = settings.aria + settings.user + settings.sweeps + settings.noise + settings.tones + settings.silence
        self.learner = BookLearner(model.codec.prvq, self.rows * settings.frames)
        self._outside = (sounds,)  # in a tuple: a module here would become part of the state
        self.spectral = SpectralDistance(model.config.codec_config.sample_rate)

    def plain_loss(self) -> dict[str, Tensor]:
        """Encoder and decoder joined directly, with some noise between."""
        wave, latents, agreement = self.encode()
        scaled = latents / spread(latents)
        features = self.codec.decoder(scaled + LATENT_NOISE * torch.randn_like(scaled))
        return self.sum_up(self.compare(wave, features), scaled, agreement)

    def quantised_loss(self) -> dict[str, Tensor]:
        """Through the books, gradients straight through them."""
        wave, latents, agreement = self.encode()
        flat = latents.flatten(0, 1)
        books = len(self.learner.books)
        some = torch.randint(1, books, (self.rows, 1), device=flat.device)
        levels = torch.where(torch.rand(self.rows, 1, device=flat.device) < self.settings.partial, some, books)
        quantised = self.learner.quantise(flat, levels.expand(-1, self.settings.frames).flatten()).view_as(latents)
        error = (latents - quantised).square().mean() / spread(latents).detach().square()
        features = self.codec.decoder(latents + (quantised - latents).detach())
        metrics = self.sum_up(self.compare(wave, features), latents, agreement)
        return metrics | {"loss": metrics["loss"] + self.settings.commitment * error, "quantisation": error}

    def sum_up(self, metrics: dict[str, Tensor], latents: Tensor, agreement: Tensor) -> dict[str, Tensor]:
        """The loss with what keeps latents near zero, and alike where a shift is all that differs."""
        size = latents.square().mean()
        loss = metrics["loss"] + self.settings.shift_weight * agreement + self.settings.size_weight * size
        return metrics | {"loss": loss, "agreement": agreement, "size": size}

    def encode(self) -> tuple[Tensor, Tensor, Tensor]:
        """A batch → waves (B, n), latents (B, F, latent), and how a shift of up to 64 samples changes the latents."""
        (sounds,), settings = self._outside, self.settings
        longer = sounds.draw(extra=64)
        wave = longer[:, : sounds.length]
        shift = torch.randint(1, 65, (settings.shifted, 1), device=wave.device)
        index = shift + torch.arange(sounds.length, device=wave.device)
        moved = longer[: settings.shifted].gather(1, index)
        latents = encode_wave(self.codec, torch.cat([wave, moved]))
        latents, others = latents[: len(wave)], latents[len(wave) :]
        same = latents[: settings.shifted]
        return wave, latents, (same - others).square().mean() / spread(same).square()

    def compare(self, wave: Tensor, features: Tensor) -> dict[str, Tensor]:
        """Mean loss over the rows, each kind by its own measure."""
        codec, tones, silence = self.codec, self.settings.tones, self.settings.silence
        made = codec.synthesise(features)
        speech = len(wave) - tones - silence
        near = feature_distance(wave[speech:], features[speech:], codec.n_fft, codec.hop_length)
        distances = {
            "speech": self.spectral(wave[:speech], made[:speech]),
            "tones": tone_distance(wave[speech:][:tones], made[speech:][:tones]) + near[:tones],
            "silence": near[tones:],
        }
        total = torch.cat(list(distances.values())).sum() / len(wave)
        return {"loss": total} | {name: values.mean() for name, values in distances.items()}

    @torch.no_grad()
    def start_books(self) -> None:
        """Put the latents' spread into the encoder's last layer; then k-means on the latents of some batches."""
        with torch.compiler.set_stance("force_eager"):
            latents = torch.cat([self.encode()[1].flatten(0, 1) for _ in range(self.settings.means_batches)])
        scale = spread(latents)
        last = self.codec.encoder.layers[-1]
        assert isinstance(last, nn.Conv1d)
        last.weight.div_(scale)
        self.learner.start(latents / scale, self.settings.means_rounds)


def spread(latents: Tensor) -> Tensor:
    """Latents (…, latent) → how far they are from their mean: root mean square, all dimensions together."""
    return latents.flatten(0, -2).var(0).mean().clamp_min(1e-12).sqrt()


def encode_wave(codec: Codec, wave: Tensor) -> Tensor:
    """(B, n) → latents (B, F, latent), before quantisation."""
    spectrum = stft(wave, codec.n_fft, codec.hop_length)
    latents: Tensor = codec.encoder(torch.cat([spectrum.real, spectrum.imag], dim=-1))
    return latents
