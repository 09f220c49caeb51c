"""CUDA source to machine code by NVRTC, which MLX's CUDA back end brings along.

The code is kept in the user's cache, so only the first start on a machine waits for the compiler. `mx.fast.cuda_kernel`
would compile at every start, 20 to 90 s for the kernels of a frame, and with headers that they do not need.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from voicechat_mlx.nn.cuda.driver import MAJOR, MINOR, attribute

LIBRARIES = ("libnvrtc.so.13", "libnvrtc.so.12")
"""MLX's CUDA back end has loaded one of them, and that one is taken: another may know no such driver."""
OPTIONS = ("--std=c++17",)
CHECKSUM_BYTES = 32


class CompileError(RuntimeError):
    """NVRTC refuses a source: a fault of this package."""


def machine_code(name: str, source: str) -> bytes:
    """The module that holds the kernel `name`, an `extern "C"` function of that source."""
    digest = hashlib.sha256("\n".join([compiler_version(), *OPTIONS, source]).encode()).hexdigest()[:32]
    try:
        kept = cache_folder() / f"{name}-{architecture()}-{digest}.cubin"
    except RuntimeError:  # nobody's home
        return compiled(source, architecture())
    found = _kept(kept)
    if found is None:
        found = compiled(source, architecture())
        _keep(found, kept)
    return found


def architecture() -> str:
    """Of the first GPU, such as `sm_90`."""
    return f"sm_{attribute(MAJOR)}{attribute(MINOR)}"


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME`, by default `~/.cache`, and in it `voicechat_mlx/cuda`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "voicechat_mlx" / "cuda"


def _kept(place: Path) -> bytes | None:
    """The code, if it is there and whole: its checksum stands before it."""
    try:
        checksum, code = (found := place.read_bytes())[:CHECKSUM_BYTES], found[CHECKSUM_BYTES:]
    except OSError:
        return None
    return code if hashlib.sha256(code).digest() == checksum else None


def _keep(code: bytes, place: Path) -> None:
    """Where nothing can be written, the next start compiles again."""
    half_written = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as file:
            half_written = Path(file.name)
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(half_written, place)
    except OSError:
        if half_written is not None:
            with suppress(OSError):
                half_written.unlink(missing_ok=True)


def compiled(source: str, target: str) -> bytes:
    """Machine code for an architecture such as `sm_90`; needs no GPU."""
    library, program = _nvrtc(), ctypes.c_void_p()
    check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
    try:
        words = [f"--gpu-architecture={target}", *OPTIONS]
        options = (ctypes.c_char_p * len(words))(*(word.encode() for word in words))
        if library.nvrtcCompileProgram(program, len(words), options):
            raise CompileError(output_of(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program).decode())
        return output_of(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def output_of(size_of: Callable[..., int], get: Callable[..., int], program: ctypes.c_void_p) -> bytes:
    """What one of NVIDIA's compilers has made: its size first, then itself."""
    size = ctypes.c_size_t()
    check(size_of(program, ctypes.byref(size)))
    held = ctypes.create_string_buffer(size.value)
    check(get(program, held))
    return held.raw


def check(failed: int) -> None:
    """Raises CompileError for any answer of such a compiler but 0."""
    if failed:
        raise CompileError(f"the compiler failed with error {failed}")


@cache
def _nvrtc() -> ctypes.CDLL:
    already_loaded = os.RTLD_NOW | getattr(os, "RTLD_NOLOAD", 0)
    for name, mode in [*((name, already_loaded) for name in LIBRARIES), *((name, os.RTLD_NOW) for name in LIBRARIES)]:
        with suppress(OSError):
            return ctypes.CDLL(name, mode=mode)
    raise CompileError(f"none of {', '.join(LIBRARIES)} can be loaded; MLX's CUDA back end needs one as well")


@cache
def compiler_version() -> str:
    """Such as `13.0`."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    check(_nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return f"{major.value}.{minor.value}"
