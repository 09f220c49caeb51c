"""Machine code is packed where somebody can pack and the driver can unpack, and stays as it is everywhere else."""

from __future__ import annotations

import ctypes

import pytest

from voicechat_mlx.nn.cuda import fatbin

MAGIC = (0xBA55ED50).to_bytes(4, "little")


class Library:
    """nvFatbin, one function of which fails."""

    def __init__(self, failing: str) -> None:
        self.failing, self.destroyed = failing, 0

    def __getattr__(self, name: str) -> object:
        return lambda *_: int(name == self.failing)

    def nvFatbinDestroy(self, _: object) -> int:  # noqa: N802
        self.destroyed += 1
        return 0


def machine_code() -> bytes:
    """As much of an ELF file as nvFatbin looks at, for sm_90, and 40 KB that are easily packed."""
    head = bytearray(64)
    head[:16] = b"\x7fELF\x02\x01\x01\x33\x07" + bytes(7)
    head[16:20] = (2).to_bytes(2, "little") + (190).to_bytes(2, "little")
    head[48:52] = (0x5A055A).to_bytes(4, "little")
    return bytes(head) + b"0123456789abcdef" * 2500


@pytest.mark.skipif(fatbin._library() is None, reason="needs nvFatbin: pip install nvidia-nvfatbin")
def test_packed_code_is_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bytes] = []
    monkeypatch.setattr(fatbin, "loads", lambda code: tried.append(code) or True)
    code = machine_code()
    packed = fatbin.packed(code, "sm_90")
    assert packed.startswith(MAGIC)
    assert len(packed) < len(code) / 3
    assert tried == [packed]


@pytest.mark.skipif(fatbin._library() is None, reason="needs nvFatbin: pip install nvidia-nvfatbin")
def test_what_the_driver_refuses_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fatbin, "loads", lambda _: False)
    assert fatbin.packed(machine_code(), "sm_90") == machine_code()


@pytest.mark.parametrize("failing", ["nvFatbinCreate", "nvFatbinAddCubin", "nvFatbinSize", "nvFatbinGet"])
def test_what_cannot_be_packed_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    library = Library(failing)
    monkeypatch.setattr(fatbin, "_library", lambda: library)
    monkeypatch.setattr(fatbin, "loads", lambda _: True)
    assert fatbin.packed(b"code", "sm_90") == b"code"
    assert library.destroyed == (failing != "nvFatbinCreate")


def test_without_nvfatbin_code_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, **_: object) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    fatbin._library.cache_clear()
    try:
        assert fatbin._library() is None
        assert fatbin.packed(b"code", "sm_90") == b"code"
    finally:
        fatbin._library.cache_clear()
