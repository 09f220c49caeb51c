"""Refine the codec's decoder. Encoder and codebooks stay as they are: no code changes, and the talker stays valid.

Reads WORK/{data,codec,perception}. Writes WORK/decoder: the decoder's weights (running means of those of the last
steps, rounded to bfloat16), figures.json and the loss curve. `export` takes them instead of the codec's. Speech is also
compared by what the frozen recogniser makes of it.
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from reference.model import VoiceChat
from reference.training.codec import measure_tones
from reference.training.data import chosen, read_clips
from reference.training.decoder_sounds import DecoderSettings, DecoderSounds
from reference.training.devices import choose_device
from reference.training.ears import Ears
from reference.training.loop import Phase, Trainer
from reference.training.model_files import (
    load_into,
    load_tensors,
    new_model,
    part_of,
    read_pieces,
    round_to_bf16,
    save_tensors,
)
from reference.training.options import settings_of, training_parser
from reference.training.quick_decoder import QuickDecoder
from reference.training.spectral import SpectralDistance, feature_distance, tone_distance
from reference.training.speech_test import LEAD, TAIL, decode, recognise
from reference.training.talker_rows import read_codes

PREFIXES = ("codec.decoder.",)


class Refinement(nn.Module):
    """The loss, and the running mean of the weights. Everything in it is part of the resumable state."""

    def __init__(self, model: VoiceChat, sounds: DecoderSounds, settings: DecoderSettings, *, compiled: bool) -> None:
        super().__init__()
        self.settings, self.decoder = settings, model.codec.decoder
        self.mean = copy.deepcopy(self.decoder).requires_grad_(False)
        self.spectral = SpectralDistance(model.config.codec_config.sample_rate)
        self._outside = (sounds, Ears(model), model.codec)  # in a tuple: modules here would become part of the state
        self._quick = QuickDecoder(self.decoder, compiled=compiled)

    def loss(self) -> dict[str, Tensor]:
        """Speech by its spectra and by ear, tones by their samples and phases."""
        self._follow()
        settings, (sounds, ears, codec) = self.settings, self._outside
        latents, waves = sounds.draw()
        features = self._quick(latents)
        made = codec.synthesise(features)
        speech, lead = settings.speech, settings.lead * sounds.frame
        heard = ears(waves[:speech, lead:], made[:speech, lead:])
        near = feature_distance(waves[speech:], features[speech:], codec.n_fft, codec.hop_length)
        distances = {
            "speech": self.spectral(waves[:speech, lead:], made[:speech, lead:]),
            "tones": tone_distance(waves[speech:], made[speech:]) + near,
        }
        loss = torch.cat(list(distances.values())).sum() / len(waves) + settings.ears * heard.mean()
        return {"loss": loss, "ears": heard.mean()} | {name: values.mean() for name, values in distances.items()}

    @torch.no_grad()
    def _follow(self) -> None:
        for mean, weight in zip(self.mean.parameters(), self.decoder.parameters(), strict=True):
            mean.lerp_(weight, 1 - self.settings.mean)


@torch.no_grad()
def measure(model: VoiceChat, work: Path, count: int) -> dict[str, float]:
    """Tones, silence, and what the recogniser reads of Aria's sentences decoded from their codes."""
    codes, clips = read_codes(work), chosen(read_clips(work / "data")[2], count)
    longest = max(len(codes[clip.text]) for clip in clips)
    rows = model.codec_silence_tokens.expand(len(clips), LEAD + longest + TAIL, -1).clone()
    for row, clip in zip(rows, clips, strict=True):
        sentence = torch.from_numpy(codes[clip.text].astype(np.int64)).to(row.device)
        row[LEAD : LEAD + len(sentence)] = sentence
    audio = decode(model, rows, chunk=16)
    heard = recognise(model, [clip.text for clip in clips], audio, read_pieces(work / "data"))
    tones = measure_tones(model.codec, model.codec_silence_tokens, model.config.codec_config.sample_rate)
    return tones | {f"{name}, from true codes": value for name, value in heard.items()} | {"sentences": len(clips)}


def refined(model: VoiceChat, training: Refinement) -> VoiceChat:
    """A copy of the model with the running mean, rounded, as its decoder."""
    copied = copy.deepcopy(model).eval()
    copied.codec.decoder.load_state_dict(training.mean.state_dict())
    round_to_bf16(copied.codec.decoder)
    return copied


def train(arguments: argparse.Namespace) -> None:
    """The whole step."""
    folder: Path = arguments.work / "decoder"
    if (folder / "figures.json").is_file() and not arguments.again:
        print(f"decoder: {folder} is complete")
        return
    device = choose_device(arguments)
    settings = settings_of(arguments, "decoder", DecoderSettings)
    model = new_model(arguments, device)
    for part in ("codec", "perception"):
        load_into(model, load_tensors(arguments.work / part))
    if list(folder.glob("weights-*.safetensors")):
        load_into(model, load_tensors(folder))
    model.perception.eval()
    rate = model.config.codec_config.sample_rate
    sounds = DecoderSounds(model.codec, model.codec_silence_tokens, arguments.work, settings, rate)
    training = Refinement(model, sounds, settings, compiled=arguments.compile and arguments.settings != "smoke")
    training.to(device)

    def save() -> None:
        save_tensors(folder, part_of(refined(model, training), PREFIXES))

    trained = model.codec.decoder.parameters()
    trainer = Trainer("decoder", folder, training, trained, settings.loop, arguments, save)
    trainer.run([Phase(until=1.0, computes=(training.loss,))])
    torch.set_float32_matmul_precision("highest")
    with torch.compiler.set_stance("force_eager"):
        figures = measure(refined(model, training), arguments.work, settings.judged)
    save()
    (folder / "figures.json").write_text(json.dumps(figures, indent=1))
    print(f"decoder: {figures}", flush=True)


if __name__ == "__main__":
    train(training_parser("decoder", __doc__).parse_args())
