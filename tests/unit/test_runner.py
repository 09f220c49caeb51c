"""Compiled stages give what plain ones give; on a GPU they are the default, here a C++ compiler stands in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import mlx.core as mx
import pytest

from tests.models import SHALLOW, build, speech
from tests.talks import assert_identical, assert_same, talk
from voicechat_mlx import Session
from voicechat_mlx.nn import cache as caches
from voicechat_mlx.pipeline import Block, Pipeline

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


@pytest.mark.usefixtures("as_written")
@pytest.mark.parametrize("system_prompt", ["", "Be brief."])
def test_all_frames_but_the_first_are_queued_until_the_end(monkeypatch: pytest.MonkeyPatch, system_prompt: str) -> None:
    """However the sound is cut: in bfloat16 the other way would round elsewhere, and be slower."""
    by_stages: list[int] = []
    as_it_is = Pipeline._by_stages

    def counted(self: Pipeline, mel: mx.array, **options: bool) -> Block:
        by_stages.append(mel.shape[1])
        return as_it_is(self, mel, **options)

    monkeypatch.setattr(Pipeline, "_by_stages", counted)
    model = build()
    model.run.compiled = True
    pcm = speech(1.0)
    for size in (FRAME, 5 * FRAME, len(pcm)):
        session = Session(model, system_prompt)
        for begin in range(0, len(pcm), size):
            session.push(pcm[begin : begin + size])
        assert by_stages == [1], size
        by_stages.clear()


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
