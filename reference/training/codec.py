"""Train the codec: Aria's voice, users' voices, tones and silence → 31 codes a frame and back.

Reads WORK/data. Writes WORK/codec: weights (rounded to bfloat16, latents scaled to unit size), codes.npy (the codes of
every sentence of Aria's, one after another) with codes.json, figures.json and the loss curve.
First quarter without quantisation; then the books start by k-means and learn along.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from reference.codec.codec import Codec
from reference.codec.convnext import ConvNeXtBlock
from reference.model import VoiceChat
from reference.rvq import residual_quantize
from reference.training.codec_losses import CodecTraining, encode_wave
from reference.training.codec_sounds import CodecSettings, Sounds
from reference.training.data import read_clips
from reference.training.devices import choose_device, compile_blocks
from reference.training.features import FULL_SCALE
from reference.training.loop import Phase, Trainer
from reference.training.model_files import (
    load_earlier,
    new_model,
    part_of,
    round_to_bf16,
    save_tensors,
)
from reference.training.options import settings_of, training_parser
from reference.training.spectral import SpectralDistance, snr_db

PREFIXES = ("codec.", "codec_silence_tokens")
SPEECH_GAIN = 15.0
"""The spectra of speech have a root mean square of about 1 / 15."""
NORM_BIAS = 0.38
"""Without a bias in the depthwise convolution, LayerNorm would divide by nothing on digital silence."""
BRANCH_GAIN = 0.3
"""What a block adds to its input starts smaller than usual; eighteen blocks in a row are then easy to train."""


@torch.no_grad()
def prepare(codec: Codec) -> None:
    """Fresh weights under which speech keeps its size on its way through; depthwise biases start away from zero."""
    for module in codec.modules():
        if isinstance(module, ConvNeXtBlock):
            bias = module.dwconv.bias
            assert bias is not None
            bias.copy_(NORM_BIAS * (torch.randint(2, bias.shape, device=bias.device) * 2 - 1))
            module.pwconv2.weight.mul_(BRANCH_GAIN)
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
    """Tones and silence as `measure_tones` has them, and Aria's spectral distance."""
    wave = sounds.draw()[: sounds.settings.aria]
    distance = SpectralDistance(rate).to(silence.device)(wave, codec.decode(codec.encode(wave))).mean()
    return measure_tones(codec, silence, rate) | {"aria_spectral_distance": round(float(distance), 7)}


@torch.no_grad()
def measure_tones(codec: Codec, silence: Tensor, rate: int) -> dict[str, float]:
    """A 440 Hz tone of one second at three amplitudes in dB SNR, decoded silence in RMS."""
    time = torch.arange(rate, device=silence.device) / rate
    figures = {}
    for amplitude in (0.1, 0.5, 0.9):
        tone = (amplitude * torch.sin(2 * math.pi * 440 * time)).unsqueeze(0)
        made = codec.decode(codec.encode(tone))
        figures[f"tone_440_at_{amplitude}_db"] = float(snr_db(tone[:, : made.shape[1]], made))
    quiet = codec.decode(silence.expand(1, 50, -1))
    figures["silence_rms"] = float(quiet.square().mean().sqrt())
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
    load_earlier(model, folder)

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
