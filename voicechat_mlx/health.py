"""Damaged tensors: a broken download often leaves zeros, and zeros load without a word and answer with silence.

Index tables are the worst of them: MLX does not check an index, so one that is too large reads foreign memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import mlx.core as mx

from voicechat_mlx.config import VoiceChatConfig
from voicechat_mlx.names import published_name

MAY_BE_ZERO = re.compile(
    r"""
      .*\.(bias | bias_[ih]h_l\d+ | dt_bias | pos_bias_[uv] | bos_emb | null_emb)     # added to something
    | .*\.(gate | residual_scale | A_log)              # before a sigmoid or an exponential
    | talker\..*norm\.weight | talker\.mog_head\.mlp_stack\.\d+\.weight              # offset norms store weight - 1
    | .*\.pad_tensor | codec\.prvq\.variance_list\..*  # not used
    """,
    re.VERBOSE,
)
"""Canonical names of the floating point parameters for which all zeros is a value that training can leave."""
SIZED_BY_WEIGHTS = {
    "talker.embed_subword.subword_flag_emb.is_continuation": "cont_emb",
    "talker.embed_subword.bos_eos_emb.special_flags": "special_emb",
}
"""Tables with one entry per subword whose length the checkpoint decides → the embedding that the entries point into."""
SILENCE = "codec_silence_tokens"
NUMBERS_AT_ONCE = 1 << 22
"""How much of a tensor is looked at in one go: 16 MiB of float32."""


def fault(name: str, tensor: mx.array) -> str | None:
    """`"holds only zeros"`, `"holds NaN or infinity"`, or None for a sound tensor. Reads the tensor once.

    Integer tables are not judged, see `table_problems`; packed weights (uint32) are.
    """
    packed = tensor.dtype == mx.uint32
    if not packed and not mx.issubdtype(tensor.dtype, mx.floating):
        return None
    mx.eval(tensor)
    total = 0.0
    flat = tensor.reshape(-1)
    for start in range(0, flat.size, NUMBERS_AT_ONCE):
        total += float(mx.abs(flat[start : start + NUMBERS_AT_ONCE].astype(mx.float32)).sum())
    if not math.isfinite(total):
        return "holds NaN or infinity"
    if total == 0 and not MAY_BE_ZERO.fullmatch(name):
        return "holds only zeros"
    return None


def table_problems(
    found: Mapping[str, mx.array], declared: Mapping[str, mx.array], config: VoiceChatConfig
) -> Iterator[str]:
    """One line for each index table that leads beyond what it points into; reads these few small tables.

    Names are canonical. A table that holds no integers is not judged here, nor is the shape of any but the flag tables.
    """
    limits = {SILENCE: config.codec_config.codebook_size}
    vocab_size = config.text_config.vocab_size
    for name, embedding in SIZED_BY_WEIGHTS.items():
        if name not in found:
            continue
        shape, module = found[name].shape, name.rpartition(".")[0]
        if len(shape) != 1 or shape[0] < vocab_size:
            yield f"{published_name(name)} is {shape}; expected one axis of {vocab_size} entries (vocab_size) or more"
            continue
        limits[name] = declared[f"{module}.{embedding}.weight"].shape[0]
        limits[f"{module}.pad_tensor"] = shape[0]
    for name, limit in limits.items():
        table = found.get(name)
        if table is None or table.size == 0 or not mx.issubdtype(table.dtype, mx.integer):
            continue
        low, high = int(table.min()), int(table.max())
        if not 0 <= low <= high < limit:
            yield f"{published_name(name)} holds {high if low >= 0 else low}; expected 0 to {limit - 1}"
