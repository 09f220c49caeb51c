"""Compiled stages give what plain ones give; on a GPU they are the default, here a C++ compiler stands in."""

from __future__ import annotations

import shutil

import pytest

from tests.models import SHALLOW, build, speech
from tests.talks import assert_identical, assert_same, talk
from voicechat_mlx.nn import cache as caches

FRAME = 1280


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
