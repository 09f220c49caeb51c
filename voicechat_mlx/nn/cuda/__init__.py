"""Kernels for MLX's CUDA back end: per-frame steps there are bound by launches, so neighbours are joined.

Each has a plain MLX twin in the module that calls it, which every other back end runs and which says what it computes.
The sources are the .cu files beside this one.
"""

from voicechat_mlx.nn.cuda.kernels import (
    add_layer_norm,
    add_norm,
    available,
    conv_step,
    decode_attention,
    mamba_step,
    nearest_codes,
    norm_rotate,
    rel_attention,
    rows_matmul,
)

__all__ = [
    "add_layer_norm",
    "add_norm",
    "available",
    "conv_step",
    "decode_attention",
    "mamba_step",
    "nearest_codes",
    "norm_rotate",
    "rel_attention",
    "rows_matmul",
]
