"""A fast BLAS for MLX on a Linux CPU.

MLX's Linux wheel carries the reference BLAS: about 4 GFLOP/s. Its symbols are looked up among the process's global
ones first, so a system OpenBLAS loaded with RTLD_GLOBAL before `mlx.core` serves them: about 150 GFLOP/s on two cores.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import logging
import os
import sys
from pathlib import Path

logger = logging.getLogger(__name__)

SWITCH_OFF = "VOICECHAT_NO_OPENBLAS"
"""Environment variable: set it to 1 to keep MLX's own BLAS."""
_LIBRARIES = ("libopenblas.so.0", "libopenblasp.so.0")
_GPU_BACK_ENDS = ("mlx-cuda-12", "mlx-cuda-13")


@functools.cache
def preload_openblas() -> str | None:
    """Call before the first import of `mlx.core`. The library that was loaded, if any; also when asked again."""
    if sys.platform != "linux" or os.environ.get(SWITCH_OFF) == "1" or _has_gpu_back_end():
        return None
    if "mlx.core" in sys.modules:
        logger.debug("mlx.core was imported before voicechat_mlx: its BLAS stays as it is")
        return None
    for library in _LIBRARIES:
        try:
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        logger.info("MLX's matrix products run on the system's %s", library)
        return library
    logger.info("no system OpenBLAS was found, so MLX is slow on this CPU; on Debian: apt install libopenblas0-pthread")
    return None


def _has_gpu_back_end() -> bool:
    """Whether MLX's library is that of a CUDA package. The CPU's has the same name: the one installed last is there."""
    for distribution in _GPU_BACK_ENDS:
        try:
            files = importlib.metadata.files(distribution) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        libraries = [file for file in files if file.name == "libmlx.so" and file.size is not None]
        return all(Path(str(file.locate())).stat().st_size == file.size for file in libraries)
    return False
