"""The audio codec: waveform (22.05 kHz) ↔ 31 codes per 80 ms, through a 16-point spectrogram and ConvNeXt stages.

Both directions are causal. Decoding runs as a stream; encoding is only needed for whole signals (the silent voice
prompt, round trips) and takes them at once. Everything is float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx
from mlx import nn

from voicechat_mlx.codec.convnext import ConvNeXtBlock
from voicechat_mlx.codec.prvq import Prvq
from voicechat_mlx.codec.stft import OverlapCache, ShortStft
from voicechat_mlx.config import CodecConfig
from voicechat_mlx.nn.cache import Cache, Tail
from voicechat_mlx.nn.conv import PatchConv1d, PatchConvTranspose1d, PointwiseConv1d

FRAMES_AT_ONCE = 4
"""Audio frames that the encoder takes in one piece."""


class AudioEncoder(nn.Module):
    """(B, T, 18) spectrogram → (B, T / (7·7·9), latent)."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        widths = [*config.widths, config.latent_dim]
        self._steps_per_frame = math.prod(config.downsample_rates)
        self.layers: list[nn.Module] = [PointwiseConv1d(config.stft_channels, widths[0], bias=False)]
        for width, wider, rate in zip(widths[:-1], widths[1:], config.downsample_rates, strict=True):
            self.layers += [ConvNeXtBlock(width, config.block_kernel_size) for _ in range(config.blocks_per_stage)]
            self.layers.append(PatchConv1d(width, wider, rate))

    def __call__(self, x: mx.array) -> mx.array:
        """From the beginning of a signal, in pieces: the activations inside take megabytes a frame."""
        past = _tails(self.layers, x.shape[0])
        piece, found = FRAMES_AT_ONCE * self._steps_per_frame, []
        for begin in range(0, x.shape[1], piece):
            found.append(_through(self.layers, x[:, begin : begin + piece], past))
            mx.eval(found[-1])
        return mx.concatenate(found, axis=1)


class DecoderCache(Cache):
    """The last inputs of each block's depthwise convolution."""

    def __init__(self, blocks: list[Tail]) -> None:
        self.blocks = blocks


class AudioDecoder(nn.Module):
    """(B, F, latent) → (B, 441·F, 18): magnitude logits and phases."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        widths = [config.latent_dim, *reversed(config.widths)]
        self.layers: list[nn.Module] = []
        for wide, width, rate in zip(widths[:-1], widths[1:], reversed(config.downsample_rates), strict=True):
            self.layers.append(PatchConvTranspose1d(wide, width, rate))
            self.layers += [ConvNeXtBlock(width, config.block_kernel_size) for _ in range(config.blocks_per_stage)]
        self.layers.append(PointwiseConv1d(widths[-1], config.stft_channels, bias=False))

    def make_cache(self, batch: int) -> DecoderCache:
        """Before the first frame."""
        return DecoderCache(_tails(self.layers, batch))

    def __call__(self, x: mx.array, cache: DecoderCache | None = None) -> mx.array:
        """Decode F more frames."""
        return _through(self.layers, x, (cache or self.make_cache(x.shape[0])).blocks)


def _tails(layers: Sequence[nn.Module], batch: int) -> list[Tail]:
    """Nothing heard yet, for each block among the layers."""
    return [layer.dwconv.make_cache(batch, mx.float32) for layer in layers if isinstance(layer, ConvNeXtBlock)]


def _through(layers: Sequence[nn.Module], x: mx.array, past: Sequence[Tail]) -> mx.array:
    """All layers, the blocks among them with one tail each."""
    tails = iter(past)
    for layer in layers:
        x = layer(x, next(tails)) if isinstance(layer, ConvNeXtBlock) else layer(x)
    return x


class CodecCache(Cache):
    """The past of a decoded stream."""

    def __init__(self, decoder: DecoderCache, overlap: OverlapCache) -> None:
        self.decoder = decoder
        self.overlap = overlap


class Codec(nn.Module):
    """Encoder, quantiser, decoder and the spectrogram around them."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self._stft = ShortStft(config.n_fft, config.hop_length)
        self.samples_per_frame = config.samples_per_frame
        self.encoder = AudioEncoder(config)
        self.decoder = AudioDecoder(config)
        self.prvq = Prvq(config.num_quantizers, config.codebook_size, config.latent_dim)

    @property
    def delay(self) -> int:
        """Samples by which a decoded stream lags: 6, the half-covered edge of the inverse STFT."""
        return self._stft.edge

    def make_cache(self, batch: int = 1) -> CodecCache:
        """Before the first frame."""
        return CodecCache(self.decoder.make_cache(batch), self._stft.make_cache(batch))

    def encode(self, wave: mx.array) -> mx.array:
        """(B, N) samples, N a multiple of 1764 → codes (B, N / 1764, Q)."""
        return self.prvq.encode(self.encoder(self._stft.transform(wave)))

    def decode(self, codes: mx.array) -> mx.array:
        """Whole stream: codes (B, F, Q) → samples (B, 1764·F)."""
        cache = self.make_cache(codes.shape[0])
        return mx.concatenate([self.decode_stream(codes, cache), self.flush(cache)], axis=1)[:, self.delay :]

    def decode_stream(self, codes: mx.array, cache: CodecCache) -> mx.array:
        """F more frames of a stream → its next 1764·F samples, `delay` samples late (the first `delay` are void)."""
        return self._stft.inverse(self.decoder(self.prvq.decode(codes), cache.decoder), cache.overlap)

    def flush(self, cache: CodecCache) -> mx.array:
        """The last `delay` samples of a stream."""
        return self._stft.flush(cache.overlap)
