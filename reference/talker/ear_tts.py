"""EAR-TTS: text ids and past codes → the next frame's 31 codes, in a few rounds of coarse to fine.

Unusual: index K (one past the codebook) means "not yet known" and adds nothing; guidance doubles the batch, the second
half being conditioned on `null_emb` instead of text; a round samples one latent and quantises it with several books.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reference.rvq import residual_quantize, sum_of_entries
from reference.talker.backbone import TalkerBackbone
from reference.talker.char_encoder import CharAwareSubwordEncoder
from reference.talker.fusion import GatedFusion
from reference.talker.mog_head import MogHead
from voicechat_mlx.config import TtsConfig


class EarTts(nn.Module):
    """The talker. Positions run over the voice prompt, then over the timeline."""

    def __init__(self, config: TtsConfig, flag_entries: tuple[int, int]) -> None:
        super().__init__()
        width = config.hidden_size
        self.mask_id = config.codebook_size
        self.counts = round_sizes(config.num_quantizers, config.num_iterations, config.exponent)
        self.bos_emb = nn.Parameter(torch.zeros(width))
        self.null_emb = nn.Parameter(torch.zeros(width))
        self.rvq_embs = nn.Parameter(torch.zeros(config.num_quantizers, config.codebook_size, config.latent_size))
        self.embed_code = nn.Linear(config.latent_size, width, bias=False)
        self.embed_subword = CharAwareSubwordEncoder(config.character_encoder, flag_entries)
        self.gated_fusion_audio_text = GatedFusion(width, config.num_quantizers, config.rms_norm_eps)
        self.backbone = TalkerBackbone(config)
        self.mog_head = MogHead(width, config.latent_size, config.mog_head)

    def forward(self, code_embed: Tensor, cond: Tensor) -> tuple[Tensor, Tensor]:
        """code_embed and cond (B, T, h) → fused and hidden (2B, T, h): B rows with text, then B rows without."""
        without_text = self.null_emb.expand_as(cond)
        fused: Tensor = self.gated_fusion_audio_text(
            torch.cat([code_embed, code_embed]), torch.cat([cond, without_text])
        )
        return fused, self.backbone(fused)

    def depthsum(self, codes: Tensor) -> Tensor:
        """(…, Q) → (…, latent): the sum of the chosen entries; the mask index adds nothing."""
        books = F.pad(self.rvq_embs, (0, 0, 0, 1))  # (Q, K + 1, latent), the last entry zero
        return sum_of_entries(books, codes)

    def embed_codes(self, codes: Tensor) -> Tensor:
        """(…, Q) → (…, h)."""
        embedded: Tensor = self.embed_code(self.depthsum(codes))
        return embedded

    def embed_history(self, codes: Tensor, audio_mask: Tensor, voice: Tensor) -> Tensor:
        """codes (B, T, Q), audio_mask (B, T), voice latent (1, T, h) → what each position hears of its past (B, T, h).

        Position t hears codes t - 1. Before the first audio position the voice latent stands in; `bos_emb` marks it.
        """
        shifted = F.pad(codes[:, :-1], (0, 0, 1, 0))
        starts = audio_mask & ~F.pad(audio_mask[:, :-1], (1, 0))
        before_start = starts.cumsum(dim=1) == 0
        heard = torch.where(before_start.unsqueeze(-1), voice, self.embed_codes(shifted))
        return heard + starts.unsqueeze(-1) * self.bos_emb

    def generate_codes(
        self, hidden: Tensor, gumbel: Tensor, noise: Tensor, *, guidance: float, top_p: float, noise_scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One position: hidden (2B, h) → codes (B, Q), means (B, M, latent), log standard deviations (B, M).

        gumbel is (B, M, K), noise (B, M, latent); M is the number of rounds that fill at least one codebook.
        """
        cond, uncond = hidden.chunk(2)
        codes = torch.full((len(cond), len(self.rvq_embs)), self.mask_id, device=hidden.device)
        means, logs, done = [], [], 0
        for index, count in enumerate(self.counts):
            known = self.embed_codes(codes)
            mean, log_std = self.mog_head.infer(
                known + cond, known + uncond, gumbel[:, index], guidance=guidance, top_p=top_p
            )
            residual = mean + torch.exp(log_std) * noise[:, index] * noise_scale
            chosen = self.quantize(residual, done, count)
            codes = torch.cat([codes[:, :done], chosen, codes[:, done + count :]], dim=-1)
            done += count
            means.append(mean)
            logs.append(log_std.squeeze(-1))
        return codes, torch.stack(means, dim=1), torch.stack(logs, dim=1)

    def quantize(self, latent: Tensor, first: int = 0, count: int | None = None) -> Tensor:
        """(…, latent) → (…, count): codes of the books first … first + count - 1, by default of all."""
        last = len(self.rvq_embs) if count is None else first + count
        return residual_quantize(self.rvq_embs[first:last], latent)


def round_sizes(num_quantizers: int, num_iterations: int, exponent: float) -> list[int]:
    """How many codebooks each round fills, rounds that fill none left out.

    When round i begins, ceil((1 - (i / n)^e)^(1 / e) · Q) are unknown: 31 31 31 31 30 29 26 22 0, hence 1 1 3 4 22.
    """
    share = [(1 - (step / num_iterations) ** exponent) ** (1 / exponent) for step in range(num_iterations)]
    masked = [math.ceil(part * num_quantizers) for part in share] + [0]
    counts = [before - after for before, after in pairwise(masked)]
    return [count for count in counts if count > 0]
