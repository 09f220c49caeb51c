"""Machine code is made once, kept, and made again where what was kept is not whole."""

from __future__ import annotations

import ctypes
import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from fixtures.random_model import random_model
from tests.cuda.emulator import pretended, unlaunched
from tests.cuda.test_kernels import TALKATIVE
from voicechat_mlx.nn.cuda import compiler
from voicechat_mlx.nn.cuda.launch import Kernel
from voicechat_mlx.precision import precision
from voicechat_mlx.session import Session

MACHINE_CODE = b"\x7fELF"
CODE = MACHINE_CODE + b"code"


@pytest.fixture()
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The sources that were compiled, in place of the compiler."""
    sources: list[str] = []

    def compiled(source: str, target: str) -> bytes:
        assert target == "sm_90"
        sources.append(source)
        return CODE

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "compiled", compiled)
    monkeypatch.setattr(compiler, "attribute", {compiler.MAJOR: 9, compiler.MINOR: 0}.get)
    monkeypatch.setattr(compiler, "compiler_version", lambda: "13.0")
    return sources


def test_a_source_is_compiled_once(made: list[str]) -> None:
    assert [compiler.machine_code("k", source) for source in ("a", "a", "b", "a")] == [CODE] * 4
    assert made == ["a", "b"]


@pytest.mark.parametrize("left", [b"", CODE[:6], bytes(compiler.CHECKSUM_BYTES) + CODE])
def test_what_is_not_whole_is_made_again(made: list[str], left: bytes) -> None:
    compiler.machine_code("k", "a")
    (kept,) = compiler.cache_folder().iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(left)
    assert compiler.machine_code("k", "a") == CODE
    assert made == ["a", "a"]
    assert kept.read_bytes() == whole


def test_a_full_disk_leaves_nothing_behind(made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compiler.os, "replace", full)
    assert compiler.machine_code("k", "a") == CODE
    assert list(compiler.cache_folder().iterdir()) == []


def test_without_a_home_nothing_is_kept(made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> None:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(compiler.Path, "home", homeless)
    assert compiler.machine_code("k", "a") == compiler.machine_code("k", "a") == CODE
    assert made == ["a", "a"]


def test_another_compiler_makes_its_own(made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    compiler.machine_code("k", "a")
    monkeypatch.setattr(compiler, "compiler_version", lambda: "12.9")
    compiler.machine_code("k", "a")
    assert made == ["a", "a"]


def test_where_nothing_can_be_kept_it_is_made_every_time(
    made: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compiler.machine_code("k", "a") == compiler.machine_code("k", "a") == CODE
    assert made == ["a", "a"]


def test_without_a_compiler_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, **_: object) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    compiler._nvrtc.cache_clear()
    with pytest.raises(compiler.CompileError, match="libnvrtc"):
        compiler._nvrtc()


def has_compiler() -> bool:
    """Whether NVRTC is there; where MLX has not loaded it, the one that pip installs is."""
    installed = importlib.util.find_spec("nvidia")
    for folder in (installed.submodule_search_locations or ()) if installed else ():
        for name in ("libnvrtc-builtins.so.*", "libnvrtc.so.*"):
            for library in Path(folder).glob(f"cu*/lib/{name}"):
                ctypes.CDLL(str(library))
    try:
        return bool(compiler.compiler_version())
    except compiler.CompileError:
        return False


@pytest.mark.skipif(not has_compiler(), reason="needs NVRTC: pip install nvidia-cuda-nvrtc")
@pytest.mark.parametrize(
    ("bits", "talker", "architecture"),
    [(0, "float32", "sm_75"), (0, "bfloat16", "sm_90"), (4, "float32", "sm_90"), (4, "mixed", "sm_120")],
)
def test_every_kernel_of_a_talk_compiles(bits: int, talker: str, architecture: str) -> None:
    """What the emulator's C++ allows, CUDA may not."""
    compiled: set[str] = set()

    def call(
        kernel: Kernel, inputs: Any, template: Any, _: int, threads: int, shapes: Any, dtypes: Any, *__: Any
    ) -> Any:
        source = kernel.source([x.dtype for x in inputs], dtypes, template, threads, kernel.name)
        if source not in compiled:
            compiled.add(source)
            assert compiler.compiled(source, architecture).startswith(MACHINE_CODE)
        return unlaunched(inputs, shapes, dtypes)

    text = replace(TALKATIVE.text_config, mamba_head_dim=32)  # groups of 64 weights
    with pretended(call, 132):
        chosen = replace(precision(talker), perception_llm=mx.bfloat16)
        model = random_model(replace(TALKATIVE, text_config=text), chosen, bits=bits)
        session = Session(model)
        session.push(np.zeros(6 * 1280, np.float32))
        session.finish()
    assert len(compiled) > 20
