"""Machine code compressed in the container that NVIDIA's driver unpacks, a fat binary, to about a quarter.

MLX hashes a kernel's code at every launch, 3 to 5 bytes a nanosecond: of the 13 MB that the launches of a frame have
together that was a quarter of the frame. NVIDIA's nvFatbin makes such containers; without it code stays as it is.
"""

from __future__ import annotations

import ctypes
import importlib.util
from contextlib import suppress
from functools import cache
from pathlib import Path

from voicechat_mlx.nn.cuda.compiler import CompileError, check, output_of
from voicechat_mlx.nn.cuda.driver import loads, version

NAME = "libnvfatbin.so"
VERSIONS = ("12", "13")
OPTIONS = (b"-compress-all",)
"""Small code is packed as well."""


def packed(code: bytes, architecture: str) -> bytes:
    """Machine code for an architecture such as `sm_90` in a fat binary, or as it is if nobody can pack or unpack it."""
    library = _library()
    if library is None:
        return code
    handle, options = ctypes.c_void_p(), (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
    if library.nvFatbinCreate(ctypes.byref(handle), options, ctypes.c_size_t(len(OPTIONS))):
        return code
    try:
        capability = architecture.removeprefix("sm_").encode()
        check(library.nvFatbinAddCubin(handle, code, ctypes.c_size_t(len(code)), capability, b"kernel"))
        found = output_of(library.nvFatbinSize, library.nvFatbinGet, handle)
        return found if loads(found) else code
    except CompileError:
        return code
    finally:
        library.nvFatbinDestroy(ctypes.byref(handle))


@cache
def _library() -> ctypes.CDLL | None:
    """The driver's version first; from where pip installs it, which the loader does not know, or from the system."""
    nvidia = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (nvidia.submodule_search_locations or ())] if nvidia else []
    names = [f"{NAME}.{each}" for each in sorted(VERSIONS, key=lambda each: each != str(version() // 1000))]
    installed = [place for folder in folders for name in names for place in sorted(folder.glob(f"*/lib/{name}"))]
    for place in [*map(str, installed), *names]:
        with suppress(OSError):
            return ctypes.CDLL(place)
    return None
