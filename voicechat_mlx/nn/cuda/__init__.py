"""Kernels for MLX's CUDA back end: per-frame steps there are bound by launches, so neighbours are joined.

Each has a plain MLX twin in the module that calls it, which every other back end runs and which says what it computes.
The sources are the .cu files beside this one.
"""

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
from voicechat_mlx.nn.cuda.launch import available
from voicechat_mlx.nn.cuda.product import SHARED_BYTES, Addend, Norm, Weights, product, suits, weights_of

__all__ = [
    "SHARED_BYTES",
    "Addend",
    "Norm",
    "Weights",
    "add_norm",
    "attend",
    "available",
    "depthwise",
    "inverse_stft",
    "mamba_frame",
    "mixture",
    "nearest_codes",
    "product",
    "rel_attention",
    "rnnt_frame",
    "subsample",
    "suits",
    "weights_of",
]
