"""EAR-TTS: one text id and the previous frame's codes in, the 31 codes of this frame out.

Two rows run side by side, with text and without (`null_emb`), for classifier-free guidance in the mixture head.
The 31 codes of a frame are found in a few rounds: the head places a point in latent space given the codes so far,
and the next codebooks quantise what is left of it. Unusual: the sum of the chosen codebook rows is carried along,
so no round gathers codes again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import mlx.core as mx
from mlx import nn

from voicechat_mlx.config import TtsConfig
from voicechat_mlx.nn import cuda
from voicechat_mlx.nn.fused import fused
from voicechat_mlx.talker.backbone import BackboneCache, TalkerBackbone
from voicechat_mlx.talker.char_encoder import CharAwareSubwordEncoder
from voicechat_mlx.talker.fusion import GatedFusion
from voicechat_mlx.talker.mog_head import MogHead


def mask_schedule(levels: int, iterations: int, exponent: float) -> list[int]:
    """How many codes each round fixes: masked_i = ⌈(1 - (i / n)^e)^(1/e) · levels⌉ and their differences.

    31 levels, 8 iterations, exponent 3 → [0, 0, 0, 1, 1, 3, 4, 22].
    """
    masked = [math.ceil((1 - (i / iterations) ** exponent) ** (1 / exponent) * levels) for i in range(iterations)]
    return [high - low for high, low in zip(masked, [*masked[1:], 0], strict=True)]


class Draws(NamedTuple):
    """The random numbers of one frame: Gumbel (rounds, components) and standard normal (rounds, latent)."""

    gumbel: mx.array
    normal: mx.array


class EarTts(nn.Module):
    """The talker without its codec."""

    def __init__(self, config: TtsConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self._levels, self._components = config.num_quantizers, config.mog_head.num_predictions
        self._latent, self._noise_scale = config.latent_size, config.noise_scale
        counts = mask_schedule(config.num_quantizers, config.num_iterations, config.exponent)
        self._counts = [count for count in counts if count > 0]
        self.bos_emb = mx.zeros((hidden,))
        self.null_emb = mx.zeros((hidden,))
        self.rvq_embs = mx.zeros((config.num_quantizers, config.codebook_size, config.latent_size))
        self.embed_code = nn.Linear(config.latent_size, hidden, bias=False)
        self.embed_subword = CharAwareSubwordEncoder(config.character_encoder)
        self.gated_fusion_audio_text = GatedFusion(hidden, config.num_quantizers, config.mog_head.eps)
        self.backbone = TalkerBackbone(config)
        self.mog_head = MogHead(config)
        self.prepare()

    def prepare(self) -> None:
        """½‖e‖² of the codebooks' rows, (Q, K).

        And of each book what `_quantise` reads: its ½‖e‖² (1, K), and itself turned, (latent, K).
        """
        self._half_norms = 0.5 * mx.square(self.rvq_embs).sum(axis=-1)
        self._books = [book.squeeze(0) for book in mx.split(self.rvq_embs, self._levels)]
        self._turned = list(
            zip(mx.split(self._half_norms, self._levels), (book.T for book in self._books), strict=True)
        )

    @property
    def mask_code(self) -> int:
        """The code that stands for 'not chosen yet': one past the codebook."""
        return self.rvq_embs.shape[1]

    @property
    def rounds(self) -> int:
        """Evaluations of the mixture head per frame: 5."""
        return len(self._counts)

    def make_cache(self) -> BackboneCache:
        """Before the voice prompt; both guidance rows."""
        return self.backbone.make_cache(2, self.bos_emb.dtype)

    def draws(self, key: mx.array) -> Draws:
        """The random numbers of one frame from its key."""
        gumbel_key, normal_key = mx.random.split(key)
        return Draws(
            mx.random.gumbel((self.rounds, self._components), key=gumbel_key),
            mx.random.normal((self.rounds, self._latent), key=normal_key),
        )

    def depthsum(self, codes: mx.array) -> mx.array:
        """(…, Q) codes → (…, latent): the sum of their codebook rows. The mask code, or any outside, adds nothing."""
        size = self.rvq_embs.shape[1]
        inside = (codes >= 0) & (codes < size)
        rows = mx.where(inside, codes, 0) + mx.arange(self._levels) * size
        chosen = self.rvq_embs.reshape(-1, self._latent)[rows]
        return mx.where(inside[..., None], chosen, 0).sum(axis=-2)

    def embed_codes(self, codes: mx.array) -> mx.array:
        """(B, T, Q) → (B, T, hidden)."""
        return fused(self.depthsum(codes).astype(self.bos_emb.dtype), self.embed_code)

    def fuse(self, code_embedding: mx.array, condition: mx.array) -> mx.array:
        """(1, T, hidden) twice → both guidance rows (2, T, hidden)."""
        unconditioned = mx.broadcast_to(self.null_emb, condition.shape)
        return self.gated_fusion_audio_text(
            mx.concatenate([code_embedding, code_embedding]), mx.concatenate([condition, unconditioned])
        )

    def warm_up(self, codes: mx.array, latent: mx.array, subwords: mx.array, cache: BackboneCache) -> mx.array:
        """Fill the cache with the voice prompt.

        Codes (1, P, Q), the voice's latents (1, P, hidden) and subwords (1, P) → hidden rows (2, P, hidden).
        Frame by frame the input is what came before it: the voice's latents up to the last frame, where audio begins
        (`bos_emb`). Only the last two subwords are spelled out.
        """
        frames = codes.shape[1]
        masked = mx.full((1, 1, self._levels), self.mask_code, dtype=codes.dtype)
        before = mx.concatenate([masked, codes[:, :-1]], axis=1)
        begins = (mx.arange(frames) == frames - 1)[None, :, None]
        embedding = mx.where(begins, self.embed_codes(before) + self.bos_emb, latent)
        spelled = (mx.arange(frames) >= frames - 2)[None]
        return self.backbone(self.fuse(embedding, self.embed_subword(subwords, spelled)), cache)

    def advance(
        self, text: mx.array, previous: mx.array, cache: BackboneCache, *, token: int | None = None
    ) -> mx.array:
        """One frame: text id (1, 1) and the codes before it (1, 1, Q) → hidden rows (2, 1, hidden).

        `token` is that id where the host knows it, which saves work.
        """
        condition = self.embed_subword(text, token=token)
        return self.backbone(self.fuse(self.embed_codes(previous), condition), cache)

    def generate_codes(self, hidden: mx.array, draws: Draws) -> mx.array:
        """Hidden rows (2, hidden) → codes (Q,) int32. In float32, whatever the weights are kept in."""
        hidden = hidden.astype(mx.float32)
        codes = mx.zeros((self._levels,), dtype=mx.int32)
        gumbel, normal = (mx.split(numbers, self.rounds) for numbers in draws)
        chosen_sum = mx.zeros((self._latent,))
        done = 0
        for turn, count in enumerate(self._counts):
            with cuda.chaining():
                shared = fused(chosen_sum[None], self.embed_code)
                mean, log_std = self.mog_head(hidden, gumbel[turn].squeeze(0), shared)
            residual = mean + mx.exp(log_std) * normal[turn].squeeze(0) * self._noise_scale
            codes, rest = self._quantise(residual, codes, range(done, done + count))
            chosen_sum = chosen_sum + (residual - rest)
            done += count
        return codes

    def _quantise(self, residual: mx.array, codes: mx.array, levels: range) -> tuple[mx.array, mx.array]:
        """A point (latent,) → each level's nearest row, subtracted before the next: codes (Q,), and what is left."""
        now = slice(levels.start, levels.stop)
        if cuda.available() and self._latent * self.rvq_embs.dtype.size % 16 == 0:
            return cuda.nearest_codes(residual, self.rvq_embs, self._half_norms, codes, levels)
        rest, found = residual[None], []
        for book, (half_norm, turned) in zip(self._books[now], self._turned[now], strict=True):
            found.append(mx.addmm(half_norm, rest, turned, alpha=-1.0).argmin(axis=1, keepdims=True))
            rest = rest - mx.take_along_axis(book, found[-1], axis=0)
        new = mx.concatenate(found, axis=1).squeeze(0).astype(mx.int32)
        return mx.concatenate([codes[: levels.start], new, codes[levels.stop :]]), rest.squeeze(0)
