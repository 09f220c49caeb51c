"""Text id → embedding, through the characters of its token: one T5Gemma encoder layer, averaged over characters.

Unusual: scores are capped by 50 · tanh(s / 50), attention looks both ways, and a position that is masked, unknown or
without characters contributes a zero vector, on to which the two flag embeddings are still added.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from reference.talker.backbone import GatedMlp, OffsetRMSNorm, rotate, split_heads
from voicechat_mlx.config import CharacterEncoderConfig
from voicechat_mlx.errors import CheckpointError


class CharacterAttention(nn.Module):
    """Bidirectional attention over the characters of one token."""

    def __init__(self, config: CharacterEncoderConfig) -> None:
        super().__init__()
        self.head_dim, self.scale = config.head_dim, config.query_pre_attn_scalar**-0.5
        self.cap, self.rope_base = config.attn_logit_softcapping, config.rope_base
        self.queries_per_key = config.num_attention_heads // config.num_key_value_heads
        query_width, key_width = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key_width, bias=False)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=False)

    def forward(self, x: Tensor, is_character: Tensor) -> Tensor:
        """(B, L, h), is_character (B, L) → (B, L, h)."""
        q = rotate(split_heads(self.q_proj(x), self.head_dim), self.rope_base)
        k = rotate(split_heads(self.k_proj(x), self.head_dim), self.rope_base)
        v = split_heads(self.v_proj(x), self.head_dim)
        k, v = (heads.repeat_interleave(self.queries_per_key, dim=1) for heads in (k, v))
        scores = q @ k.transpose(-1, -2) * self.scale
        capped = self.cap * torch.tanh(scores / self.cap)
        weights = torch.softmax(capped.masked_fill(~is_character[:, None, None, :], -torch.inf), dim=-1)
        y: Tensor = self.o_proj((weights @ v).transpose(1, 2).flatten(2))
        return y


class CharacterLayer(nn.Module):
    """x + post(attn(pre(x))), then x + post(mlp(pre(x)))."""

    def __init__(self, config: CharacterEncoderConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.pre_self_attn_layernorm = OffsetRMSNorm(width, eps)
        self.self_attn = CharacterAttention(config)
        self.post_self_attn_layernorm = OffsetRMSNorm(width, eps)
        self.pre_feedforward_layernorm = OffsetRMSNorm(width, eps)
        self.mlp = GatedMlp(width, config.intermediate_size)
        self.post_feedforward_layernorm = OffsetRMSNorm(width, eps)

    def forward(self, x: Tensor, is_character: Tensor) -> Tensor:
        """(B, L, h), is_character (B, L) → (B, L, h)."""
        x = x + self.post_self_attn_layernorm(self.self_attn(self.pre_self_attn_layernorm(x), is_character))
        out: Tensor = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return out


class CharacterEncoder(nn.Module):
    """The layers and their final norm."""

    def __init__(self, config: CharacterEncoderConfig) -> None:
        super().__init__()
        self.scale = config.hidden_size**0.5
        self.layers = nn.ModuleList(CharacterLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = OffsetRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, is_character: Tensor) -> Tensor:
        """(B, L, h), is_character (B, L) → (B, L, h)."""
        x = x * self.scale
        for layer in self.layers:
            x = layer(x, is_character)
        y: Tensor = self.norm(x)
        return y


class SubwordFlagEmbedding(nn.Module):
    """Does the token continue a word? Two embeddings, chosen by a table over ids."""

    pad_tensor: Tensor
    is_continuation: Tensor

    def __init__(self, entries: int, width: int) -> None:
        super().__init__()
        self.register_buffer("pad_tensor", torch.tensor(entries - 1))
        self.register_buffer("is_continuation", torch.zeros(entries, dtype=torch.int64))
        self.cont_emb = nn.Embedding(2, width)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) → (B, T, h)."""
        flags: Tensor = self.cont_emb(look_up(self.is_continuation, ids, self.pad_tensor))
        return flags


class BosEosEmbedding(nn.Module):
    """Is the token ordinary (0), BOS (1) or EOS (2)? Three embeddings, chosen by a table over ids."""

    pad_tensor: Tensor
    special_flags: Tensor

    def __init__(self, entries: int, width: int) -> None:
        super().__init__()
        self.register_buffer("pad_tensor", torch.tensor(entries - 1))
        self.register_buffer("special_flags", torch.zeros(entries, dtype=torch.int64))
        self.special_emb = nn.Embedding(3, width)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) → (B, T, h)."""
        flags: Tensor = self.special_emb(look_up(self.special_flags, ids, self.pad_tensor))
        return flags


class CharAwareSubwordEncoder(nn.Module):
    """Text ids → conditioning embeddings. `set_vocabulary` must run before the first call."""

    characters: Tensor
    """(ids, longest token) character numbers, filled up with the padding character."""

    def __init__(self, config: CharacterEncoderConfig, flag_entries: tuple[int, int]) -> None:
        super().__init__()
        self.padding = config.char_vocab_size - 1
        self.embed_tokens = nn.Embedding(config.char_vocab_size, config.hidden_size)
        self.backbone = nn.ModuleDict({"encoder": CharacterEncoder(config)})
        self.proj_embedding = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.subword_flag_emb = SubwordFlagEmbedding(flag_entries[0], config.hidden_size)
        self.bos_eos_emb = BosEosEmbedding(flag_entries[1], config.hidden_size)
        self.register_buffer("characters", torch.zeros(0, 0, dtype=torch.int32), persistent=False)

    def set_vocabulary(self, vocabulary: Mapping[str, int]) -> None:
        """Token → id; the single-character tokens, by id, are the characters. CheckpointError on a wrong count."""
        singles = sorted((token for token in vocabulary if len(token) == 1), key=vocabulary.__getitem__)
        if len(singles) != self.padding:
            raise CheckpointError(
                f"the tokenizer has {len(singles)} single characters; the talker needs {self.padding}"
            )
        number = {character: index for index, character in enumerate(singles)}
        spelled = {index: [number[char] for char in token if char in number] for token, index in vocabulary.items()}
        longest = max(len(spelling) for spelling in spelled.values())
        blank = [self.padding] * longest
        rows = [(spelled.get(index, []) + blank)[:longest] for index in range(max(spelled) + 1)]
        self.characters = torch.tensor(rows, dtype=torch.int32, device=self.embed_tokens.weight.device)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """ids (B, T), mask (B, T) → (B, T, h): characters where the mask is true, flags everywhere."""
        distinct, position = torch.unique(ids, return_inverse=True)
        spoken = torch.where(mask.unsqueeze(-1), self.spell(distinct)[position], 0.0)
        out: Tensor = spoken + self.subword_flag_emb(ids) + self.bos_eos_emb(ids)
        return out

    def spell(self, ids: Tensor) -> Tensor:
        """(n,) distinct ids → (n, h): encoder output averaged over characters, projected; zero without characters."""
        if len(self.characters) == 0:
            raise CheckpointError("the talker has no character table; call set_vocabulary with the tokenizer's tokens")
        padding_row = torch.full_like(self.characters[:1], self.padding)
        table = torch.cat([self.characters, padding_row])
        known = (ids >= 0) & (ids < len(self.characters))
        spelling = table[torch.where(known, ids, len(self.characters))].long()  # (n, longest)
        lengths = (spelling != self.padding).sum(-1)
        spelled = lengths.nonzero().squeeze(-1)
        zeros = torch.zeros(len(ids), self.embed_tokens.embedding_dim, device=ids.device)
        if len(spelled) == 0:
            return zeros
        spelling = spelling[spelled, : int(lengths.max())]
        is_character = spelling != self.padding
        encoded = self.backbone["encoder"](self.embed_tokens(spelling), is_character)
        mean = (encoded * is_character.unsqueeze(-1)).sum(1) / lengths[spelled].unsqueeze(-1)
        return zeros.index_copy(0, spelled, self.proj_embedding(mean))


def look_up(table: Tensor, ids: Tensor, fallback: Tensor) -> Tensor:
    """table[id], or table[fallback] for ids outside the table."""
    known = (ids >= 0) & (ids < len(table))
    return table[torch.where(known, ids, fallback)]
