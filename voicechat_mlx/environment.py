"""Settings of MLX that must stand before it is imported. What the user has set stays.

MLX_CUDA_GRAPH_CACHE_SIZE: the CUDA back end keeps launch graphs by shape and ends the process after twice as many
misses as its cache has places, which long conversations with growing buffers would reach with the default of 400.
MLX_ENABLE_TF32: float32 products on NVIDIA's tensor cores keep 10 bits of each factor; here float32 means float32.
"""

from __future__ import annotations

import os

DEFAULTS = {"MLX_CUDA_GRAPH_CACHE_SIZE": "20000", "MLX_ENABLE_TF32": "0"}


def set_defaults() -> None:
    """Call before the first import of `mlx.core`."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
