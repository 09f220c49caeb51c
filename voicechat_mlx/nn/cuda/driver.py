"""The little that is asked of NVIDIA's driver itself, about the first GPU."""

from __future__ import annotations

import ctypes
from functools import cache

MULTIPROCESSORS, MAJOR, MINOR = 16, 75, 76
"""What the driver's `cuDeviceGetAttribute` calls the number of multiprocessors and the compute capability."""


@cache
def attribute(number: int) -> int:
    """Of the first GPU, by the driver's number for it; 0 where there is no driver."""
    value = ctypes.c_int(0)
    library = _library()
    failed = library is None or library.cuInit(0) or library.cuDeviceGetAttribute(ctypes.byref(value), number, 0)
    return 0 if failed else value.value


@cache
def version() -> int:
    """Of CUDA, as the driver knows it: 13000 is 13.0, 0 no driver."""
    value, library = ctypes.c_int(0), _library()
    return 0 if library is None or library.cuDriverGetVersion(ctypes.byref(value)) else value.value


def loads(code: bytes) -> bool:
    """Whether the driver takes the code, on the first GPU."""
    context, module, library = ctypes.c_void_p(), ctypes.c_void_p(), _library()
    if library is None or library.cuInit(0) or library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0):
        return False
    if library.cuCtxPushCurrent_v2(context):  # a thread that has not computed yet has none
        return False
    try:
        if library.cuModuleLoadData(ctypes.byref(module), code):
            return False
        library.cuModuleUnload(module)
        return True
    finally:
        library.cuCtxPopCurrent_v2(ctypes.byref(context))
        library.cuDevicePrimaryCtxRelease_v2(0)


@cache
def _library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
