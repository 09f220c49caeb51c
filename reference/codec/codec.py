"""The codec: 1764 samples ↔ one latent ↔ 31 codes, every layer causal.

Unusual: it works on a tiny spectrogram (16-point frames every 4 samples); the decoder predicts log magnitude and phase,
and the magnitude saturates at 100.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reference.audio.stft import inverse_stft, stft
from reference.codec.convnext import ConvNeXtBlock
from reference.codec.prvq import Prvq
from voicechat_mlx.config import CodecConfig

MAX_MAGNITUDE = 100.0


class AudioEncoder(nn.Module):
    """Spectrogram features → latents: per stage some ConvNeXt blocks, then a strided convolution to the next width."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv1d(config.stft_channels, config.widths[0], 1, bias=False)]
        for width, following, rate in zip(
            config.widths, (*config.widths[1:], config.latent_dim), config.downsample_rates, strict=True
        ):
            layers.extend(ConvNeXtBlock(width, config.block_kernel_size) for _ in range(config.blocks_per_stage))
            layers.append(nn.Conv1d(width, following, rate, stride=rate, bias=False))
        self.layers = nn.ModuleList(layers)

    def forward(self, features: Tensor) -> Tensor:
        """(B, T, 18) → (B, T // 441, latent)."""
        x = features.transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return x.transpose(1, 2)


class AudioDecoder(nn.Module):
    """Latents → spectrogram features: the encoder's stages in reverse, each led by a transposed convolution."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        source = config.latent_dim
        for width, rate in zip(reversed(config.widths), reversed(config.downsample_rates), strict=True):
            layers.append(nn.ConvTranspose1d(source, width, rate, stride=rate, bias=False))
            layers.extend(ConvNeXtBlock(width, config.block_kernel_size) for _ in range(config.blocks_per_stage))
            source = width
        layers.append(nn.Conv1d(source, config.stft_channels, 1, bias=False))
        self.layers = nn.ModuleList(layers)

    def forward(self, latents: Tensor) -> Tensor:
        """(B, F, latent) → (B, 441 F, 18)."""
        x = latents.transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return x.transpose(1, 2)


class Codec(nn.Module):
    """Waveform ↔ codes."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.n_fft, self.hop_length = config.n_fft, config.hop_length
        self.encoder = AudioEncoder(config)
        self.decoder = AudioDecoder(config)
        self.prvq = Prvq(config.num_quantizers, config.codebook_size, config.latent_dim)

    def encode(self, wave: Tensor) -> Tensor:
        """(B, N) → (B, N // 1764, Q)."""
        spectrum = stft(wave, self.n_fft, self.hop_length)
        features = torch.cat([spectrum.real, spectrum.imag], dim=-1)
        return self.prvq.encode(self.encoder(features))

    def decode(self, codes: Tensor) -> Tensor:
        """(B, F, Q) → (B, 1764 F)."""
        return self.synthesise(self.decoder(self.prvq.decode(codes)))

    def synthesise(self, features: Tensor) -> Tensor:
        """(B, T, 18) log magnitudes and phases → (B, 4 T) samples."""
        return inverse_stft(polar_spectrum(features), self.hop_length)


def polar_spectrum(features: Tensor) -> Tensor:
    """(B, T, 2 · bins) → (B, T, bins) complex; the first and the last bin of a real signal have no imaginary part."""
    log_magnitude, phase = features.chunk(2, dim=-1)
    magnitude = MAX_MAGNITUDE * torch.exp(-F.softplus(math.log(MAX_MAGNITUDE) - log_magnitude))
    index = torch.arange(phase.shape[-1], device=phase.device)
    inner = (index > 0) & (index < phase.shape[-1] - 1)
    return torch.complex(magnitude * torch.cos(phase), magnitude * torch.sin(phase) * inner)
