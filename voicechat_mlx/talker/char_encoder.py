"""What a text id sounds like: its characters through one bidirectional T5Gemma layer, averaged, plus two flags.

Unusual: attention logits are soft-capped, tanh(s / 50) · 50. A token without characters contributes a zero vector,
and so does one whose mask is false; both still get their flag embeddings.
"""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
from mlx import nn

from voicechat_mlx.config import CharacterEncoderConfig
from voicechat_mlx.nn.attention import merge_heads, split_heads
from voicechat_mlx.nn.norms import OffsetRMSNorm
from voicechat_mlx.talker.backbone import GatedMlp

SMALL_TABLE = 1 << 17
"""Numbers in a table of all ids, half a megabyte, that takes no time to make and no room to speak of."""
TABULATED_AT_ONCE = 1 << 16
"""Characters encoded in one go when all ids are."""


class CharAttention(nn.Module):
    """Bidirectional attention among the characters of one token, no q/k norm, soft-capped."""

    def __init__(self, config: CharacterEncoderConfig) -> None:
        super().__init__()
        self._heads, self._kv_heads, self._head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self._scale, self._cap = config.query_pre_attn_scalar**-0.5, config.attn_logit_softcapping
        self._base = config.rope_base
        hidden = config.hidden_size
        self.q_proj = nn.Linear(hidden, self._heads * self._head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, self._kv_heads * self._head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self._kv_heads * self._head_dim, bias=False)
        self.o_proj = nn.Linear(self._heads * self._head_dim, hidden, bias=False)

    def __call__(self, x: mx.array, is_character: mx.array) -> mx.array:
        """(N, C, hidden) characters, (N, C) bool → (N, C, hidden)."""
        q = self._rotate(split_heads(self.q_proj(x), self._heads))
        k = self._rotate(split_heads(self.k_proj(x), self._kv_heads))
        v = split_heads(self.v_proj(x), self._kv_heads)
        groups = self._heads // self._kv_heads
        if groups > 1:
            k, v = mx.repeat(k, groups, axis=1), mx.repeat(v, groups, axis=1)
        scores = mx.tanh((q @ k.swapaxes(-1, -2)) * (self._scale / self._cap)) * self._cap
        weights = mx.softmax(mx.where(is_character[:, None, None], scores, -1e30), axis=-1, precise=True)
        return self.o_proj(merge_heads(weights @ v))

    def _rotate(self, x: mx.array) -> mx.array:
        return mx.fast.rope(x, self._head_dim, traditional=False, base=self._base, scale=1.0, offset=0)


class CharLayer(nn.Module):
    """x + post(attn(pre(x))), then x + post(mlp(pre(x)))."""

    def __init__(self, config: CharacterEncoderConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.pre_self_attn_layernorm = OffsetRMSNorm(hidden, eps)
        self.self_attn = CharAttention(config)
        self.post_self_attn_layernorm = OffsetRMSNorm(hidden, eps)
        self.pre_feedforward_layernorm = OffsetRMSNorm(hidden, eps)
        self.mlp = GatedMlp(hidden, config.intermediate_size)
        self.post_feedforward_layernorm = OffsetRMSNorm(hidden, eps)

    def __call__(self, x: mx.array, is_character: mx.array) -> mx.array:
        """(N, C, hidden) → the same shape."""
        x = x + self.post_self_attn_layernorm(self.self_attn(self.pre_self_attn_layernorm(x), is_character))
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class CharEncoder(nn.Module):
    """The layers and the final norm, under the checkpoint's path `backbone.encoder`."""

    def __init__(self, config: CharacterEncoderConfig) -> None:
        super().__init__()
        self.layers = [CharLayer(config) for _ in range(config.num_hidden_layers)]
        self.norm = OffsetRMSNorm(config.hidden_size, config.rms_norm_eps)

    def __call__(self, x: mx.array, is_character: mx.array) -> mx.array:
        """(N, C, hidden) → the same shape."""
        for layer in self.layers:
            x = layer(x, is_character)
        return self.norm(x)


class CharBackbone(nn.Module):
    """Holds the encoder under its path."""

    def __init__(self, config: CharacterEncoderConfig) -> None:
        super().__init__()
        self.encoder = CharEncoder(config)


class FlagEmbedding(nn.Module):
    """A small embedding chosen by a stored table of flags. An id beyond the table is read as id `pad_tensor`."""

    def __init__(self, table: str, embedding: str, flags: int, hidden: int) -> None:
        super().__init__()
        self._table, self._embedding = table, embedding
        self.pad_tensor = mx.array(0, dtype=mx.int32)
        self[table] = mx.zeros((1,), dtype=mx.int32)
        self[embedding] = nn.Embedding(flags, hidden)

    def __call__(self, ids: mx.array) -> mx.array:
        """(…,) text ids → (…, hidden)."""
        table = self[self._table]
        known = (ids >= 0) & (ids < table.shape[0])
        return self[self._embedding](table[mx.where(known, ids, self.pad_tensor)])


class CharAwareSubwordEncoder(nn.Module):
    """Text ids (B, T) → (B, T, hidden): the checkpoint's whole `embed_subword` subtree."""

    def __init__(self, config: CharacterEncoderConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self._input_scale = math.sqrt(hidden)
        self.embed_tokens = nn.Embedding(config.char_vocab_size, hidden)
        self.backbone = CharBackbone(config)
        self.proj_embedding = nn.Linear(hidden, hidden, bias=False)
        self.subword_flag_emb = FlagEmbedding("is_continuation", "cont_emb", 2, hidden)
        self.bos_eos_emb = FlagEmbedding("special_flags", "special_emb", 3, hidden)
        self._kept_token, self._kept = -1, mx.zeros((1, 1, hidden))
        self._table: mx.array | None = None
        self._host_lengths = np.zeros(1, np.int32)
        self._characters = mx.zeros((1, 1), dtype=mx.int32)
        self._lengths = mx.zeros((1,), dtype=mx.int32)

    def set_characters(self, characters: mx.array, lengths: mx.array) -> None:
        """Each text id's character indices (V, longest) and how many there are (V,), both int32, from the tokenizer."""
        self._characters, self._lengths = characters, lengths
        self._host_lengths = np.asarray(lengths)

    @property
    def is_small(self) -> bool:
        """Whether `tabulate` pays anywhere, once the characters are set."""
        return len(self._host_lengths) * self.embed_tokens.weight.shape[1] <= SMALL_TABLE

    def keep(self, token: int) -> None:
        """Compute this id's embedding now, once the characters are set. For PAD, which most frames say."""
        ids = mx.array([[token]])
        self._kept_token, self._kept = token, self._flagged(self.spell(ids, self._width(token)), ids)

    def tabulate(self) -> None:
        """Compute every id's embedding now, once the characters are set: (V, hidden), half a gigabyte at the real size.

        Pays where a frame is bound by launches: thirty of them become one.
        """
        order = np.argsort(self._host_lengths, kind="stable")
        lengths = np.maximum(self._host_lengths[order], 1)
        rows = []
        for length in np.unique(lengths):
            alike = order[lengths == length]
            for begin in range(0, len(alike), TABULATED_AT_ONCE // int(length) + 1):
                ids = mx.array(alike[begin : begin + TABULATED_AT_ONCE // int(length) + 1])[None]
                rows.append(self._flagged(self.spell(ids, int(length)), ids)[0])
                mx.eval(rows[-1])
        self._table = mx.concatenate(rows)[mx.array(np.argsort(order))]
        mx.eval(self._table)

    def __call__(self, ids: mx.array, mask: mx.array | None = None, *, token: int | None = None) -> mx.array:
        """`mask` (B, T) bool: where false, the flags alone speak.

        `token`: the only id in `ids`, where the host knows it, which saves work on short tokens and the kept one.
        """
        if token is not None and token == self._kept_token:
            return self._kept
        if self._table is not None and mask is None:
            return self._table[ids]
        spelled = self.spell(ids, None if token is None else self._width(token))
        if mask is not None:
            spelled = mx.where(mask[..., None], spelled, 0)
        return self._flagged(spelled, ids)

    def _flagged(self, spelled: mx.array, ids: mx.array) -> mx.array:
        return spelled + self.subword_flag_emb(ids) + self.bos_eos_emb(ids)

    def _width(self, token: int) -> int:
        """Characters of one id, at least 1."""
        return max(1, int(self._host_lengths[token])) if 0 <= token < len(self._host_lengths) else 1

    def _counts(self, ids: mx.array) -> mx.array:
        """Characters of each id; none for an id beyond the table."""
        known = (ids >= 0) & (ids < self._lengths.shape[0])
        return mx.where(known, self._lengths[mx.where(known, ids, 0)], 0)

    def spell(self, ids: mx.array, longest: int | None = None) -> mx.array:
        """(B, T) → (B, T, hidden): the characters of each id, encoded and averaged; zero where there are none."""
        flat = ids.reshape(-1)
        lengths = self._counts(flat)
        characters = self._characters[mx.where(lengths > 0, flat, 0)][:, :longest]
        is_character = mx.arange(characters.shape[1]) < lengths[:, None]
        x = self.embed_tokens(characters) * self._input_scale
        x = mx.where(is_character[..., None], self.backbone.encoder(x, is_character), 0)
        mean = x.sum(axis=1) / mx.maximum(lengths, 1)[:, None].astype(x.dtype)
        return self.proj_embedding(mean).reshape(*ids.shape, -1)
