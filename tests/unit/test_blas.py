"""Which BLAS serves MLX: a system OpenBLAS on a Linux CPU, nothing anywhere else."""

from __future__ import annotations

import ctypes
import importlib.metadata
import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest

from voicechat_mlx import blas


@pytest.fixture
def loaded(monkeypatch) -> list[tuple[str, int]]:
    """A Linux machine with a CPU-only MLX not yet imported; collects what would be loaded."""
    calls: list[tuple[str, int]] = []
    monkeypatch.setattr(blas, "preload_openblas", blas.preload_openblas.__wrapped__)  # without its memory
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv(blas.SWITCH_OFF, raising=False)
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    monkeypatch.setattr(blas, "_has_gpu_back_end", lambda: False)
    monkeypatch.setattr(ctypes, "CDLL", lambda name, mode: calls.append((name, mode)))
    return calls


def test_openblas_is_loaded_globally_and_logged(loaded, caplog) -> None:
    caplog.set_level(logging.INFO)
    assert blas.preload_openblas() == "libopenblas.so.0"
    assert loaded == [("libopenblas.so.0", ctypes.RTLD_GLOBAL)]
    assert "libopenblas.so.0" in caplog.text


def test_the_environment_variable_switches_it_off(loaded, monkeypatch) -> None:
    monkeypatch.setenv(blas.SWITCH_OFF, "1")
    assert blas.preload_openblas() is None
    assert loaded == []


def test_a_mac_and_a_gpu_are_left_alone(loaded, monkeypatch) -> None:
    monkeypatch.setattr(blas, "_has_gpu_back_end", lambda: True)
    assert blas.preload_openblas() is None
    monkeypatch.setattr(blas, "_has_gpu_back_end", lambda: False)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert blas.preload_openblas() is None
    assert loaded == []


def test_an_mlx_that_is_already_there_is_left_alone(loaded, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx.core", sys)
    assert blas.preload_openblas() is None
    assert loaded == []


def test_a_machine_without_openblas_carries_on_and_is_told_what_to_install(loaded, monkeypatch, caplog) -> None:
    def missing(name: str, mode: int) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    caplog.set_level(logging.INFO)
    assert blas.preload_openblas() is None
    assert "apt install libopenblas0-pthread" in caplog.text


@pytest.mark.parametrize(("installed", "size", "expected"), [(True, 7, True), (True, 8, False), (False, 7, False)])
def test_the_gpu_back_end_is_recognised_by_its_library(monkeypatch, tmp_path, installed, size, expected) -> None:
    """With the CPU's package installed over it, its name is left and its library is not."""
    library = tmp_path / "libmlx.so"
    library.write_bytes(bytes(7))
    listed = SimpleNamespace(name="libmlx.so", size=size, locate=lambda: library)

    def files(name: str) -> list[SimpleNamespace]:
        if installed and name == "mlx-cuda-13":
            return [SimpleNamespace(name="other", size=None, locate=lambda: tmp_path / "no"), listed]
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", files)
    assert blas._has_gpu_back_end() is expected


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux needs it")
def test_mlx_still_multiplies_correctly_on_the_library_it_is_given() -> None:
    code = """
from voicechat_mlx.blas import preload_openblas
preload_openblas()
import mlx.core as mx, numpy as np
a = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
product = mx.matmul(mx.array(a), mx.array(a.T), stream=mx.cpu)
assert np.allclose(np.array(product), a.astype(np.float64) @ a.T.astype(np.float64), atol=1e-4)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
