"""Settings of MLX that must stand before it is imported. What the user has set stays.

MLX_CUDA_GRAPH_CACHE_SIZE: the CUDA back end keeps launch graphs by shape and ends the process after twice as many
misses as its cache has places, which long conversations with growing buffers would reach with the default of 400.
MLX_ENABLE_TF32: float32 products on NVIDIA's tensor cores keep 10 bits of each factor; here float32 means float32.
MLX_MAX_OPS_PER_BUFFER, MLX_MAX_MB_PER_BUFFER: the CUDA back end hands launches to the GPU after so many, or when these
have read so much. The few launches of a frame read gigabytes: counted by number, the GPU pauses less often.
"""

from __future__ import annotations

import os
import sys

DEFAULTS = {"MLX_CUDA_GRAPH_CACHE_SIZE": "20000", "MLX_ENABLE_TF32": "0"}
if sys.platform == "linux":  # on a Mac the same names mean Metal's buffers
    DEFAULTS |= {"MLX_MAX_OPS_PER_BUFFER": "20", "MLX_MAX_MB_PER_BUFFER": "100000"}


def set_defaults() -> None:
    """Call before the first import of `mlx.core`."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
