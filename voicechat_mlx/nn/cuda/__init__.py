"""Kernels for MLX's CUDA back end: per-frame steps there are bound by launches, so neighbours are joined.

Each has a plain MLX twin in the module that calls it, which every other back end runs and which says what it computes.
The sources are the .cu and .cuh files beside this one.
"""

from voicechat_mlx.nn.cuda.chain import chaining, keep, recording
from voicechat_mlx.nn.cuda.kernels import (
    add_norm,
    attend,
    depthwise,
    inverse_stft,
    mamba_frame,
    mixture,
    nearest_codes,
    rel_attention,
    rnnt_frame,
    subsample,
)
from voicechat_mlx.nn.cuda.later import later
from voicechat_mlx.nn.cuda.launch import SHARED_BYTES, available
from voicechat_mlx.nn.cuda.meeting import meetings
from voicechat_mlx.nn.cuda.product import product, suits, weights_of
from voicechat_mlx.nn.cuda.promise import settled
from voicechat_mlx.nn.cuda.step import Addend, Norm, Weights

__all__ = [
    "SHARED_BYTES",
    "Addend",
    "Norm",
    "Weights",
    "add_norm",
    "attend",
    "available",
    "chaining",
    "depthwise",
    "inverse_stft",
    "keep",
    "later",
    "mamba_frame",
    "meetings",
    "mixture",
    "nearest_codes",
    "product",
    "recording",
    "rel_attention",
    "rnnt_frame",
    "settled",
    "subsample",
    "suits",
    "weights_of",
]
