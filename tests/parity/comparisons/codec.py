"""Network 4 piece by piece: both spectrograms, every layer of encoder and decoder, the quantiser, whole round trips."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import mlx.nn as nn
import torch
from torch import Tensor

from reference.audio.stft import stft
from tests.parity.comparisons.stack import Layer, compare_layers
from tests.parity.pair import Pair, to_mlx
from tests.parity.tolerances import AUDIO_SNR_DB, FLOAT32
from tests.parity.whole_loop import SPOKEN, twin_loop
from voicechat_mlx.codec.stft import ShortStft
from voicechat_mlx.report.rows import Row, compare, compare_ids, compare_snr

FRAMES = 12
"""One second: more than any layer reaches back (3 blocks · 6 steps at each of three rates, under 3 frames)."""


def codec_blocks(pair: Pair) -> Iterator[Row]:
    """Encoder first: the twin's own speech goes in."""
    loop = twin_loop(pair, SPOKEN)
    yield from encoder_blocks(pair, some_speech(pair, loop))
    yield from decoder_blocks(pair, loop["tts.codes"][None, :FRAMES].long())


def some_speech(pair: Pair, loop: dict[str, Tensor]) -> Tensor:
    """(1, 1764 · FRAMES) samples of the twin's."""
    return loop["codec.audio"][None, : FRAMES * pair.twin.config.codec_config.samples_per_frame]


def encoder_blocks(pair: Pair, wave: Tensor) -> Iterator[Row]:
    """(1, N) samples → features → latents → codes."""
    config, codec = pair.twin.config.codec_config, pair.twin.codec
    spectrum = stft(wave, config.n_fft, config.hop_length)
    features = torch.cat([spectrum.real, spectrum.imag], dim=-1)
    transform = ShortStft(config.n_fft, config.hop_length).transform
    yield compare("codec.spectrogram", transform(to_mlx(wave)), features, FLOAT32)
    yield from compare_layers(
        channels_last("codec.encoder", pair.mlx.codec.encoder.layers, codec.encoder.layers), features
    )
    latents = codec.encoder(features)
    yield compare("codec.encoder", pair.mlx.codec.encoder(to_mlx(features)), latents, FLOAT32)
    yield compare_ids("codec.prvq.encode", pair.mlx.codec.prvq.encode(to_mlx(latents)), codec.prvq.encode(latents))
    yield compare_ids("codec.encode", pair.mlx.codec.encode(to_mlx(wave)), codec.encode(wave))


def decoder_blocks(pair: Pair, codes: Tensor) -> Iterator[Row]:
    """(1, F, Q) codes → latents → features → samples."""
    config, codec = pair.twin.config.codec_config, pair.twin.codec
    latents = codec.prvq.decode(codes)
    yield compare("codec.prvq.decode", pair.mlx.codec.prvq.decode(to_mlx(codes)), latents, FLOAT32)
    yield from compare_layers(
        channels_last("codec.decoder", pair.mlx.codec.decoder.layers, codec.decoder.layers), latents
    )
    features = codec.decoder(latents)
    yield compare("codec.decoder", pair.mlx.codec.decoder(to_mlx(latents)), features, FLOAT32)
    transform = ShortStft(config.n_fft, config.hop_length)
    cache = transform.make_cache(1)
    wave = codec.synthesise(features)
    late = transform.inverse(to_mlx(features), cache)[:, transform.edge :]
    yield compare("codec.inverse", late, wave[:, : late.shape[1]], FLOAT32)
    ours, theirs = pair.mlx.codec.decode(to_mlx(codes)), codec.decode(codes)
    yield compare("codec.decode", ours, theirs, FLOAT32)
    yield compare_snr("codec.decode", ours, theirs, AUDIO_SNR_DB)


def channels_last(name: str, ours: Sequence[nn.Module], theirs: Sequence[torch.nn.Module]) -> list[Layer]:
    """The twin's layers have channels before time."""
    return [
        Layer(
            name=f"{name}.layers.{index}",
            mlx=mine,
            twin=lambda x, layer=layer: layer(x.transpose(1, 2)).transpose(1, 2),
        )
        for index, (mine, layer) in enumerate(zip(ours, theirs, strict=True))
    ]
