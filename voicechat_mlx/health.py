"""Damaged tensors: a broken download often leaves zeros, and zeros load without a word and answer with silence."""

from __future__ import annotations

import math
import re

import mlx.core as mx

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
NUMBERS_AT_ONCE = 1 << 22
"""How much of a tensor is looked at in one go: 16 MiB of float32."""


def fault(name: str, tensor: mx.array) -> str | None:
    """`"holds only zeros"`, `"holds NaN or infinity"`, or None for a sound tensor. Reads the tensor once.

    Integer tables are not judged (any value is possible); packed weights (uint32) are.
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
