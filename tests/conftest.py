"""Tiny checkpoints, made once for all tests. No test may write into them: copy the folder first."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.make_tiny import make


@pytest.fixture(scope="session")
def tiny_fp32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("fp32"), "fp32")


@pytest.fixture(scope="session")
def tiny_bf16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("bf16"), "bf16")


@pytest.fixture(scope="session")
def tiny_torch_layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("torch-layout"), "torch-layout")


@pytest.fixture(scope="session")
def tiny_4bit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("4bit"), "4bit")
