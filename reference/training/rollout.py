"""The talker speaking on its own, many rows at once, with the settings it is shipped with.

Unusual: the twin runs the whole history again for each frame; here keys and values are kept, in tables of fixed
size, so that one frame can be captured as a CUDA graph and replayed. The modules' own weights and parts are used
throughout.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from reference.model import VoiceChat
from reference.offline import SPELLED_TAIL
from reference.talker.backbone import TalkerAttention, TalkerBlock, split_heads
from reference.training.vocabularies import EOS, PAD


class Conditions:
    """Text ids → conditioning, every id spelled at once: `CharAwareSubwordEncoder` without looking at the data."""

    def __init__(self, model: VoiceChat) -> None:
        self.encoder = model.talker.embed_subword
        self.spelling = self.encoder.characters.long()
        self.is_character = self.spelling != self.encoder.padding
        self.lengths = self.is_character.sum(1, keepdim=True)
        assert bool((self.lengths > 0).all()), "an id without characters"

    def spelled(self) -> Tensor:
        """(V, h): what each id's characters give."""
        encoder = self.encoder
        encoded = encoder.backbone["encoder"](encoder.embed_tokens(self.spelling), self.is_character)
        table: Tensor = encoder.proj_embedding((encoded * self.is_character.unsqueeze(-1)).sum(1) / self.lengths)
        return table

    def of(self, spelled: Tensor, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """ids (B, T), mask (B, T) or None for all true → (B, T, h)."""
        found = spelled[ids]
        if mask is not None:
            found = torch.where(mask.unsqueeze(-1), found, 0.0)
        flags: Tensor = self.encoder.subword_flag_emb(ids) + self.encoder.bos_eos_emb(ids)
        return found + flags


class VoicePrompt:
    """The voice prompt before every row: codes of silence, first and last unknown; PAD as text, two of them spelled."""

    def __init__(self, model: VoiceChat) -> None:
        frames = model.audio_prompt_latent.shape[1]
        position = torch.arange(frames, device=model.control_codes.device).unsqueeze(0)
        self.last = position == frames - 1
        codes = model.codec_silence_tokens.expand(1, frames, -1)
        self.codes = torch.where(((position == 0) | self.last).unsqueeze(-1), model.talker.mask_id, codes)
        self.text = torch.full_like(position, PAD)
        self.mask = position >= frames - SPELLED_TAIL
        self._model = model

    def heard(self) -> Tensor:
        """(1, P, h): what each position of it hears."""
        heard: Tensor = self._model.talker.embed_history(self.codes, self.last, self._model.audio_prompt_latent)
        return heard


class Rollout:
    """Generates codes for a fixed number of rows of a fixed length."""

    def __init__(self, model: VoiceChat, rows: int, frames: int, graphs: bool) -> None:
        self.model, self.graphs = model, graphs
        self.conditions, self.prompt = Conditions(model), VoicePrompt(model)
        tts, device = model.config.tts_config, model.control_codes.device
        self.size = self.prompt.codes.shape[1] + frames
        shape = (2 * rows, tts.num_key_value_heads, self.size, tts.head_dim)
        self.keys = [torch.zeros(shape, device=device) for _ in model.talker.backbone.layers]
        self.values = [torch.zeros(shape, device=device) for _ in model.talker.backbone.layers]
        self.text = torch.full((rows, frames), PAD, device=device)
        self.codes = torch.zeros(rows, frames, tts.num_quantizers, dtype=torch.int64, device=device)
        self.previous = torch.zeros(rows, tts.num_quantizers, dtype=torch.int64, device=device)
        self.time = torch.zeros(1, dtype=torch.int64, device=device)
        self.spelled = torch.zeros(len(self.conditions.spelling), tts.hidden_size, device=device)
        self._step: Callable[[], None] | None = None

    @torch.no_grad()
    def generate(self, text: Tensor) -> Tensor:
        """ids (rows, frames) of the positions from 1 on → codes (rows, frames, Q)."""
        self.text.copy_(text)
        self.spelled.copy_(self.conditions.spelled())
        self._warm_up()
        if self._step is None:
            self._step = self._captured() if self.graphs else self._advance
        for _ in range(self.text.shape[1]):
            self._step()
        return self.codes.clone()

    def _warm_up(self) -> None:
        """The prompt through the backbone once for each kind of row, its keys and values copied to all."""
        frames = self.prompt.codes.shape[1]
        heard = self.prompt.heard()
        cond = self.conditions.of(self.spelled, self.prompt.text, self.prompt.mask)
        fused = self._fuse(heard, cond)  # (2, P, h)
        for table in (*self.keys, *self.values):
            table.zero_()
        rows = len(self.text)
        repeated = fused.repeat_interleave(rows, dim=0)
        self._through_backbone(repeated, torch.arange(frames, device=fused.device))
        self.previous.fill_(self.model.talker.mask_id)
        self.time.zero_()

    def _captured(self) -> Callable[[], None]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._advance()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._advance()
        self._warm_up()
        replay: Callable[[], None] = graph.replay
        return replay

    def _advance(self) -> None:
        """One position of every row."""
        model, tts = self.model, self.model.config.tts_config
        ids = self.text.index_select(1, self.time)  # (rows, 1)
        previous = torch.where(ids == EOS, model.codec_silence_tokens, self.previous)
        heard = model.talker.embed_codes(previous.unsqueeze(1))
        fused = self._fuse(heard, self.conditions.of(self.spelled, ids))
        hidden = self._through_backbone(fused, self.time + self.prompt.codes.shape[1])[:, 0]
        rows, rounds = len(ids), len(model.talker.counts)
        uniform = torch.rand(rows, rounds, tts.mog_head.num_predictions, device=ids.device)
        gumbel = -torch.log(-torch.log(uniform.clamp(1e-9, 1 - 1e-7)))
        noise = torch.randn(rows, rounds, tts.latent_size, device=ids.device)
        codes, _, _ = model.talker.generate_codes(
            hidden, gumbel, noise, guidance=tts.guidance_scale, top_p=tts.top_p, noise_scale=tts.noise_scale
        )
        self.previous.copy_(codes)
        self.codes.index_copy_(1, self.time, codes.unsqueeze(1))
        self.time += 1

    def _fuse(self, heard: Tensor, cond: Tensor) -> Tensor:
        """(B, t, h) twice → rows with text, then rows without (2B, t, h)."""
        without = self.model.talker.null_emb.expand_as(cond)
        fused: Tensor = self.model.talker.gated_fusion_audio_text(torch.cat([heard, heard]), torch.cat([cond, without]))
        return fused

    def _through_backbone(self, x: Tensor, position: Tensor) -> Tensor:
        """(2 · rows, t, h) at positions (t,) → hidden states; keys and values are kept."""
        backbone = self.model.talker.backbone
        for index, block in enumerate(backbone.layers):
            assert isinstance(block, TalkerBlock)
            x = self._block(block, x, position, index)
        hidden: Tensor = backbone.norm(x)
        return hidden

    def _block(self, block: TalkerBlock, x: Tensor, position: Tensor, index: int) -> Tensor:
        attended = self._attend(block.self_attn, block.input_layernorm(x), position, index)
        x = x + block.post_attention_layernorm(attended)
        out: Tensor = x + block.post_feedforward_layernorm(block.mlp(block.pre_feedforward_layernorm(x)))
        return out

    def _attend(self, attention: TalkerAttention, x: Tensor, position: Tensor, index: int) -> Tensor:
        q, k, v = (
            split_heads(project(x), attention.head_dim)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        q, k = (
            turn(attention.q_norm(q), position, attention.rope_base),
            turn(attention.k_norm(k), position, attention.rope_base),
        )
        keys, values = self.keys[index], self.values[index]
        keys.index_copy_(2, position, k)
        values.index_copy_(2, position, v)
        distance = position.unsqueeze(1) - torch.arange(self.size, device=x.device)
        visible = (distance >= 0) & (distance < (attention.window or self.size))
        keys, values = (table.repeat_interleave(attention.queries_per_key, dim=1) for table in (keys, values))
        mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=visible, scale=attention.scale)
        out: Tensor = attention.o_proj(mixed.transpose(1, 2).flatten(2))
        return out


def turn(x: Tensor, position: Tensor, base: float) -> Tensor:
    """`reference.talker.backbone.rotate` at given positions (t,): x (…, t, d)."""
    half = x.shape[-1] // 2
    frequencies = base ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)
    angles = position.float().unsqueeze(1) * frequencies
    first, second = x[..., :half], x[..., half:]
    return torch.cat(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=-1
    )
