"""Train the codec: Aria's voice, users' voices, tones and silence → 31 codes a frame and back.

Reads WORK/data. Writes WORK/codec: weights (rounded to bfloat16, latents scaled to unit size), codes.npy (the codes of
every sentence of Aria's, one after another) with codes.json, figures.json and the loss curve.
First quarter without quantisation; then the books start by k-means and learn along.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from reference.audio.stft import stft
from reference.codec.codec import Codec
from reference.codec.convnext import ConvNeXtBlock
from reference.model import VoiceChat
from reference.rvq import residual_quantize
from reference.training.data import read_clips
from reference.training.features import FULL_SCALE, random_gain
from reference.training.loop import LoopSettings, Phase, Trainer, choose_device, compile_blocks
from reference.training.model_files import load_into, load_tensors, new_model, part_of, round_to_bf16, save_tensors
from reference.training.options import settings_of, training_parser
from reference.training.quantiser import BookLearner
from reference.training.spectral import SpectralDistance, feature_distance, snr_db, tone_distance

PREFIXES = ("codec.", "codec_silence_tokens")
TONES = (220.0, 330.0, 440.0, 550.0, 660.0, 880.0, 1000.0, 1320.0)
"""Hz. Tones keep their phase through the codec; other sounds need not."""
SPEECH_GAIN = 15.0
"""The spectra of speech have a root mean square of about 1 / 15."""
LATENT_NOISE = 0.1
"""Added while nothing is quantised: how finely latents may be used."""
NORM_BIAS = 0.38
"""Without a bias in the depthwise convolution, LayerNorm would divide by nothing on digital silence."""


@dataclass(frozen=True, kw_only=True)
class CodecSettings:
    """What a batch holds and how the losses are weighed."""

    loop: LoopSettings
    frames: int
    """Length of a row."""
    aria: int
    user: int
    sweeps: int
    noise: int
    tones: int
    silence: int
    """Rows of each kind in a batch."""
    plain: float
    """Share of the steps without quantisation."""
    shifted: int
    """Rows of Aria that are also encoded a few samples later, and must give the same latents."""
    shift_weight: float
    size_weight: float
    """Weight of the latents' mean square."""
    commitment: float
    partial: float
    """Share of rows that are decoded from their first few books only."""
    means_rounds: int
    means_batches: int


class Sounds(nn.Module):
    """Draws batches of waves on the device: rows of speech, sweeps and noise first, then tones, then silence."""

    aria: Tensor
    user: Tensor
    tones: Tensor

    def __init__(self, work: Path, settings: CodecSettings, samples_per_frame: int, rate: int) -> None:
        super().__init__()
        _, user, _, aria = read_clips(work / "data")
        self.settings, self.rate = settings, rate
        self.length = settings.frames * samples_per_frame
        self.register_buffer("aria", torch.from_numpy(np.array(aria)))
        self.register_buffer("user", torch.from_numpy(np.array(user[: 60 * 60 * 16000])))
        self.register_buffer("tones", torch.tensor(TONES))

    @property
    def with_phase(self) -> int:
        """Rows at the end that are compared sample by sample."""
        return self.settings.tones + self.settings.silence

    def draw(self, extra: int = 0) -> Tensor:
        """(B, length + extra)."""
        s, length = self.settings, self.length + extra
        speech = torch.cat([self._cut(self.aria, s.aria, length), self._cut(self.user, s.user, length)])
        speech = self._ends(speech) * random_gain((len(speech), 1), 0.5, 2.0, speech.device)
        time = torch.arange(length, device=speech.device) / self.rate
        low, high = (50 + 5000 * torch.rand(2, s.sweeps, 1, device=speech.device)).unbind(0)
        sweeps = torch.sin(2 * math.pi * (low * time + (high - low) * time.square() / (2 * time[-1])))
        noise = torch.randn(s.noise, length, device=speech.device) * 0.3
        tones = torch.sin(
            2 * math.pi * (self._tone_frequencies() * time + torch.rand(s.tones, 1, device=speech.device))
        )
        others = torch.cat([sweeps, noise, tones])
        gain = random_gain((len(others), 1), 0.03, 0.95, speech.device)
        silence = torch.zeros(s.silence, length, device=speech.device)
        return torch.cat([speech, self._ends(others) * gain, silence])

    def _tone_frequencies(self) -> Tensor:
        return self.tones[torch.randint(len(TONES), (self.settings.tones, 1), device=self.tones.device)]

    def _cut(self, samples: Tensor, rows: int, length: int) -> Tensor:
        first = torch.randint(len(samples) - length, (rows, 1), device=samples.device)
        return samples[first + torch.arange(length, device=samples.device)].float() / FULL_SCALE

    def _ends(self, waves: Tensor) -> Tensor:
        """Half of the rows begin in silence, half end in it."""
        place = torch.arange(waves.shape[1], device=waves.device) / waves.shape[1]
        begin, end = (torch.rand(2, len(waves), 1, device=waves.device) * 2 - 1).clamp_min(0).unbind(0)
        return waves * ((place >= begin) & (place < 1 - end))


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
        features = self.codec.decoder(latents + LATENT_NOISE * torch.randn_like(latents))
        return self.sum_up(self.compare(wave, features), latents, agreement)

    def quantised_loss(self) -> dict[str, Tensor]:
        """Through the books, gradients straight through them."""
        wave, latents, agreement = self.encode()
        flat = latents.flatten(0, 1)
        books = len(self.learner.books)
        some = torch.randint(1, books, (self.rows, 1), device=flat.device)
        levels = torch.where(torch.rand(self.rows, 1, device=flat.device) < self.settings.partial, some, books)
        quantised = self.learner.quantise(flat, levels.expand(-1, self.settings.frames).flatten()).view_as(latents)
        error = (latents - quantised).square().mean() / spread(latents)
        features = self.codec.decoder(latents + (quantised - latents).detach())
        metrics = self.sum_up(self.compare(wave, features), latents, agreement)
        return metrics | {"loss": metrics["loss"] + self.settings.commitment * error, "quantisation": error}

    def sum_up(self, metrics: dict[str, Tensor], latents: Tensor, agreement: Tensor) -> dict[str, Tensor]:
        """The loss with what keeps latents small and alike; without a bound they grow and grow."""
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
        return wave, latents, (same - others).square().mean() / spread(same)

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
        """k-means on the latents of some batches."""
        with torch.compiler.set_stance("force_eager"):
            batches = [self.encode()[1].flatten(0, 1) for _ in range(self.settings.means_batches)]
        self.learner.start(torch.cat(batches), self.settings.means_rounds)


def spread(latents: Tensor) -> Tensor:
    """Latents (B, F, latent) → their variance, all dimensions together; no gradient."""
    return latents.detach().flatten(0, 1).var(0).mean().clamp_min(1e-8)


def encode_wave(codec: Codec, wave: Tensor) -> Tensor:
    """(B, n) → latents (B, F, latent), before quantisation."""
    spectrum = stft(wave, codec.n_fft, codec.hop_length)
    latents: Tensor = codec.encoder(torch.cat([spectrum.real, spectrum.imag], dim=-1))
    return latents


@torch.no_grad()
def prepare(codec: Codec) -> None:
    """Fresh weights under which speech keeps its size on its way through; depthwise biases start away from zero."""
    for module in codec.modules():
        if isinstance(module, ConvNeXtBlock):
            bias = module.dwconv.bias
            assert bias is not None
            bias.copy_(NORM_BIAS * (torch.randint(2, bias.shape, device=bias.device) * 2 - 1))
    for layer in (*codec.encoder.layers, *codec.decoder.layers):
        if isinstance(layer, nn.Conv1d):
            nn.init.normal_(layer.weight, std=(layer.in_channels * layer.kernel_size[0]) ** -0.5)
        elif isinstance(layer, nn.ConvTranspose1d):
            nn.init.normal_(layer.weight, std=layer.in_channels**-0.5)
    first = codec.encoder.layers[0]
    assert isinstance(first, nn.Conv1d)
    first.weight.mul_(SPEECH_GAIN)


@torch.no_grad()
def scale_latents(codec: Codec, latents: Tensor) -> None:
    """Make the latents' RMS 1 by the encoder's last layer, the books and the decoder's first; no code changes."""
    scale = latents.square().mean().sqrt()
    last, first = codec.encoder.layers[-1], codec.decoder.layers[0]
    assert isinstance(last, nn.Conv1d) and isinstance(first, nn.ConvTranspose1d)
    last.weight.div_(scale)
    first.weight.mul_(scale)
    for book in codec.prvq.mus_list:
        book.div_(scale)


@torch.no_grad()
def finish(model: VoiceChat, sounds: Sounds, work: Path) -> dict[str, float]:
    """Scale, round to bfloat16, find the silence codes, code every sentence of Aria's; → figures."""
    codec, frame = model.codec, model.config.codec_config.samples_per_frame
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    scale_latents(codec, encode_wave(codec, sounds.draw()[: sounds.settings.aria]))
    round_to_bf16(codec)
    silence = codec.encode(torch.zeros(1, 38 * frame, device=sounds.aria.device))[0, -1]
    model.codec_silence_tokens.copy_(silence)
    codes, clips = [], read_clips(work / "data")[2]
    for clip in clips:
        wave = sounds.aria[clip.offset : clip.offset + clip.length].float() / FULL_SCALE
        frames = -(-clip.length // frame)
        padded = nn.functional.pad(wave, (0, frames * frame - clip.length))
        latents = encode_wave(codec, padded.unsqueeze(0))
        codes.append(residual_quantize(codec.prvq.mus_list, latents)[0].cpu().numpy().astype(np.int16))
    folder = work / "codec"
    np.save(folder / "codes.npy", np.concatenate(codes))
    records = [
        {"text": clip.text, "starts": clip.starts, "frames": len(code)} for clip, code in zip(clips, codes, strict=True)
    ]
    (folder / "codes.json").write_text(json.dumps(records))
    return measure(codec, silence, sounds, model.config.codec_config.sample_rate)


@torch.no_grad()
def measure(codec: Codec, silence: Tensor, sounds: Sounds, rate: int) -> dict[str, float]:
    """A 440 Hz tone of one second at three amplitudes in dB SNR, decoded silence in RMS, Aria's spectral distance."""
    device = silence.device
    time = torch.arange(rate, device=device) / rate
    figures = {}
    for amplitude in (0.1, 0.5, 0.9):
        tone = (amplitude * torch.sin(2 * math.pi * 440 * time)).unsqueeze(0)
        made = codec.decode(codec.encode(tone))
        figures[f"tone_440_at_{amplitude}_db"] = float(snr_db(tone[:, : made.shape[1]], made))
    quiet = codec.decode(silence.expand(1, 50, -1))
    figures["silence_rms"] = float(quiet.square().mean().sqrt())
    rows = sounds.settings.aria
    wave = sounds.draw()[:rows]
    spectral = SpectralDistance(rate).to(device)
    figures["aria_spectral_distance"] = float(spectral(wave, codec.decode(codec.encode(wave))).mean())
    return {name: round(value, 7) for name, value in figures.items()}


def train(arguments: argparse.Namespace) -> None:
    """The whole step."""
    folder = arguments.work / "codec"
    if (folder / "figures.json").is_file() and not arguments.again:
        print(f"codec: {folder} is complete")
        return
    device = choose_device(arguments)
    settings = settings_of(arguments, "codec", CodecSettings)
    model = new_model(arguments, device)
    config = model.config.codec_config
    sounds = Sounds(arguments.work, settings, config.samples_per_frame, config.sample_rate).to(device)
    prepare(model.codec)
    if arguments.again:
        load_into(model, load_tensors(folder))

    def save() -> None:
        save_tensors(folder, part_of(model, PREFIXES))

    training = CodecTraining(model, settings, sounds).to(device)
    if device.type == "cuda" and arguments.compile:
        compile_blocks(model.codec, ConvNeXtBlock)
    trained = [parameter for parameter in model.codec.parameters() if parameter.requires_grad]
    Trainer("codec", folder, training, trained, settings.loop, arguments, save).run(
        [
            Phase(until=settings.plain, computes=(training.plain_loss,)),
            Phase(
                until=1.0,
                computes=(training.quantised_loss,),
                begin=training.start_books,
                every=100,
                callback=training.learner.replace_unused,
            ),
        ]
    )
    with torch.compiler.set_stance("force_eager"):
        figures = finish(model, sounds, arguments.work)
    save()
    (folder / "figures.json").write_text(json.dumps(figures, indent=1))
    print(f"codec: {figures}", flush=True)


if __name__ == "__main__":
    train(training_parser("codec", __doc__).parse_args())
