"""Compiled stages give what plain ones give; on a GPU they are the default, here a C++ compiler stands in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import mlx.core as mx
import pytest

from tests.models import SHALLOW, build, speech
from tests.talks import assert_identical, assert_same, talk
from voicechat_mlx.nn import cache as caches

FRAME = 1280


@pytest.fixture
def as_written() -> Iterator[None]:
    """What would be compiled runs as it stands, so that no compiler is needed."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.mark.parametrize("system_prompt", ["", "Be brief."])
@pytest.mark.usefixtures("as_written")
def test_whole_frames_give_the_same_talk_as_stages(system_prompt: str) -> None:
    """All weights float32; the whole frame decodes its transcript in rounds, without looking at the host."""
    pcm = speech(1.2)
    frames = range(FRAME, len(pcm), FRAME)
    whole, stages = build(), build()
    whole.run.compiled = True
    expected = talk(stages, pcm, frames, system_prompt=system_prompt)
    assert_same(talk(whole, pcm, frames, system_prompt=system_prompt), expected)
    assert_same(talk(whole, pcm, [4 * FRAME], system_prompt=system_prompt), expected)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="MLX compiles for a CPU with g++")
def test_compiled_stages_give_the_same_talk_also_when_buffers_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers grow every 8 frames here, so stages are traced anew in the middle of the talk and for a second one."""
    monkeypatch.setattr(caches, "KV_BLOCK", 8)
    pcm = speech(1.6)
    frames = range(FRAME, len(pcm), FRAME)
    plain, compiled = build(SHALLOW), build(SHALLOW)
    compiled.run.compiled = True
    expected = talk(plain, pcm, frames, system_prompt="Hello.")
    first = talk(compiled, pcm, frames, system_prompt="Hello.")
    assert_same(first, expected)
    assert_same(talk(compiled, pcm, [3 * FRAME], system_prompt="Hello."), expected)
    assert_identical(talk(compiled, pcm, frames, system_prompt="Hello."), first)
