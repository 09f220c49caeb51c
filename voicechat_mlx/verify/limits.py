"""How far MLX may be from the float32 twin at one layer, both given the same input, and why so far and no further."""

from __future__ import annotations

import math
from dataclasses import dataclass

import mlx.core as mx
from torch import Tensor

FLOAT32 = 2e-5
"""Two float32 programs differ by the order of their sums: √n · 6e-8 for n terms. A wrong epsilon costs 1e-3."""
FLOAT32_ON_GPU = 2e-3
"""GPUs may round the factors of float32 products to 10 bits (TF32): 5e-4 each, a few layers of products in a block."""
BFLOAT16 = 5e-2
"""8 bits: 4e-3 a rounding, some ten in a block; and the log-mel, whose numbers lie around -10, is rounded itself."""
AUDIO_DB = 80.0
"""Decoded audio from the same codes: 1e-4 of the signal."""
AUDIO_DB_ON_GPU = 40.0
FLIPPED = 0.01
"""Share of ids or codes whose two best candidates may be closer together than float32 can tell."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Tolerances of one run; None where only a measurement makes sense."""

    float32: float | None
    language: float | None
    talker: float | None
    audio_db: float | None
    language_ids: float | None
    """Share that may differ."""
    codes: float | None
    """Share of the talker's that may differ."""
    codec_codes: float | None
    """Share of the codec's that may differ."""


MEASURE_ONLY = Limits(
    float32=None, language=None, talker=None, audio_db=None, language_ids=None, codes=None, codec_codes=None
)
"""For another checkpoint on the twin's side: there the difference is the question, not a fault."""


def limits(language: mx.Dtype, talker: mx.Dtype) -> Limits:
    """For activations of these types on MLX's default device."""
    on_gpu = mx.default_device().type == mx.DeviceType.gpu
    exact = FLOAT32_ON_GPU if on_gpu else FLOAT32
    return Limits(
        float32=exact,
        language=exact if language == mx.float32 else BFLOAT16,
        talker=exact if talker == mx.float32 else BFLOAT16,
        audio_db=AUDIO_DB_ON_GPU if on_gpu else AUDIO_DB,
        language_ids=FLIPPED if language == mx.float32 and not on_gpu else None,
        codes=FLIPPED if talker == mx.float32 and not on_gpu else None,
        codec_codes=None if on_gpu else FLIPPED,
    )


def share_of(ids: Tensor, share: float | None) -> int | None:
    """How many of these ids may differ; None when that is not judged."""
    return None if share is None else math.floor(share * ids.numel())
