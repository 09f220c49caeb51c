"""FastConformer: subsampling, then blocks of half-feed-forward, attention, convolution, half-feed-forward.

Causal throughout, so a stream of frames through caches equals the whole utterance at once.
Source: Gulati et al. 2020 (Conformer), Rekesh et al. 2023 (FastConformer).
"""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from voicechat_mlx.config import AudioConfig, EncoderConfig
from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.activations import glu, silu
from voicechat_mlx.nn.cache import Cache, Tail, Timeline, end_step
from voicechat_mlx.nn.conv import DepthwiseConv1d, PointwiseConv1d
from voicechat_mlx.nn.fused import fused, normed
from voicechat_mlx.nn.norms import LayerNorm
from voicechat_mlx.perception.rel_attention import RelPosCache, RelPosMultiHeadAttention
from voicechat_mlx.perception.subsampling import CausalDwStridingSubsampling, SubsamplingCache

LAYER_NORM_EPS = 1e-5


class ConformerCache(Cache):
    """The past of one block: its attention window and its convolution's last frames."""

    def __init__(self, attention: RelPosCache, conv: Tail) -> None:
        self.attention = attention
        self.conv = conv


class EncoderCache(Cache):
    """The past of the whole encoder."""

    def __init__(self, pre_encode: SubsamplingCache, layers: list[ConformerCache]) -> None:
        self.pre_encode = pre_encode
        self.layers = layers


class FeedForward(nn.Module):
    """linear2(silu(linear1(x)))."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(d_model, d_ff, bias=False)
        self.linear2 = nn.Linear(d_ff, d_model, bias=False)

    def __call__(self, x: mx.array, *, norm: nn.Module | None = None, residual: mx.array | None = None) -> mx.array:
        """(B, T, d_model) → the same shape; with a residual, that plus half of it."""
        inner = fused(x, self.linear1, norm=norm, activation=silu)
        return fused(inner, self.linear2, residual=residual, half=True)


class ConformerConvolution(nn.Module):
    """Pointwise, GLU, causal depthwise, LayerNorm (stored as `batch_norm`), SiLU, pointwise."""

    def __init__(self, d_model: int, kernel_size: int) -> None:
        super().__init__()
        self.pointwise_conv1 = PointwiseConv1d(d_model, 2 * d_model, bias=False)
        self.depthwise_conv = DepthwiseConv1d(d_model, kernel_size, bias=False)
        self.batch_norm = LayerNorm(d_model, eps=LAYER_NORM_EPS)
        self.pointwise_conv2 = PointwiseConv1d(d_model, d_model, bias=False)

    def __call__(
        self,
        x: mx.array,
        cache: Tail | None = None,
        *,
        padding: bool = False,
        norm: nn.Module | None = None,
        residual: mx.array | None = None,
    ) -> mx.array:
        """(B, T, d_model) → the same shape. `padding` frames contribute nothing to the depthwise window."""
        gated = fused(x, self.pointwise_conv1, norm=norm, activation=glu)
        if padding:
            gated = mx.zeros_like(cuda.settled(gated))
        mixed = self.depthwise_conv(gated, cache)
        return fused(mixed, self.pointwise_conv2, norm=self.batch_norm, after_norm=silu, residual=residual)


class ConformerBlock(nn.Module):
    """½ feed-forward, attention, convolution, ½ feed-forward, norm; each with a residual and a norm before it."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        d_model = config.d_model
        d_ff = d_model * config.ff_expansion_factor
        self.norm_feed_forward1 = LayerNorm(d_model, eps=LAYER_NORM_EPS)
        self.feed_forward1 = FeedForward(d_model, d_ff)
        self.norm_self_att = LayerNorm(d_model, eps=LAYER_NORM_EPS)
        self.self_attn = RelPosMultiHeadAttention(d_model, config.n_heads, config.left_context)
        self.norm_conv = LayerNorm(d_model, eps=LAYER_NORM_EPS)
        self.conv = ConformerConvolution(d_model, config.conv_kernel_size)
        self.norm_feed_forward2 = LayerNorm(d_model, eps=LAYER_NORM_EPS)
        self.feed_forward2 = FeedForward(d_model, d_ff)
        self.norm_out = LayerNorm(d_model, eps=LAYER_NORM_EPS)

    def make_cache(self, batch: int, dtype: mx.Dtype, timeline: Timeline | None = None) -> ConformerCache:
        """Nothing heard yet."""
        return ConformerCache(
            self.self_attn.make_cache(batch, dtype, timeline), self.conv.depthwise_conv.make_cache(batch, dtype)
        )

    def __call__(
        self,
        x: mx.array,
        cache: ConformerCache | None = None,
        *,
        padding: bool = False,
        mask: mx.array | None = None,
    ) -> mx.array:
        """(B, T, d_model) → the same shape. `padding` marks all T frames as beyond the end of the speech.

        `mask` is the attention's, and may come from another block.
        """
        cache = cache or self.make_cache(x.shape[0], x.dtype)
        x = self.feed_forward1(x, norm=self.norm_feed_forward1, residual=x)
        if not padding:
            x = self.self_attn(x, cache.attention, mask=mask, norm=self.norm_self_att, residual=x)
        x = self.conv(x, cache.conv, padding=padding, norm=self.norm_conv, residual=x)
        return normed(self.feed_forward2(x, norm=self.norm_feed_forward2, residual=x), self.norm_out)


class FastConformerEncoder(nn.Module):
    """(B, T, 128) log-mel → (B, (T - 2) // 8 + 2, d_model)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.pre_encode = CausalDwStridingSubsampling(config.feat_in, config.subsampling_conv_channels, config.d_model)
        self.layers = [ConformerBlock(config) for _ in range(config.n_layers)]

    def make_cache(self, batch: int, dtype: mx.Dtype) -> EncoderCache:
        """Nothing heard yet."""
        timeline = Timeline()
        layers = [layer.make_cache(batch, dtype, timeline) for layer in self.layers]
        return EncoderCache(self.pre_encode.make_cache(batch, mx.float32), layers)

    def __call__(self, mel: mx.array, cache: EncoderCache | None = None, *, last: bool | None = None) -> mx.array:
        """(B, T, features) → (B, F, d_model): the frames that the rows so far complete; see `pre_encode`."""
        last = cache is None if last is None else last
        dtype = self.pre_encode.out.bias.dtype
        cache = cache or self.make_cache(mel.shape[0], dtype)
        x = self.pre_encode(mel, cache.pre_encode, last=last).astype(dtype)
        return self._blocks(x, cache, padding=False)

    def padding_frame(self, cache: EncoderCache) -> mx.array:
        """(1, 1, d_model): a frame wholly beyond the end of the speech, which masks turn to zeros at each mixing step.

        The subsampling of nothing but masked rows is the bias of its output layer.
        """
        return self._blocks(self.pre_encode.out.bias[None, None], cache, padding=True)

    def _blocks(self, x: mx.array, cache: EncoderCache, *, padding: bool) -> mx.array:
        if x.shape[1] == 0:
            return x
        first, past = self.layers[0].self_attn, cache.layers[0].attention
        mask = first.mask(x.shape[1], past.timeline.offset)  # one for all: they share the window and the timeline
        with cuda.chaining():
            for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
                x = layer(x, layer_cache, padding=padding, mask=mask)
        end_step(cache, x.shape[1])
        return cuda.settled(x)


class Perception(nn.Module):
    """The encoder and the projection to the language model's width."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.encoder = FastConformerEncoder(config.encoder)
        self.proj = nn.Linear(config.encoder.d_model, config.output_dim)

    def __call__(self, mel: mx.array, cache: EncoderCache | None = None) -> tuple[mx.array, mx.array]:
        """(B, T, features) → projected (B, F, hidden) for the language model, encoded (B, F, d_model) for the RNNT."""
        encoded = self.encoder(mel, cache)
        return fused(encoded, self.proj), encoded
