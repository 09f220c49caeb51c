"""How the input is split never changes the output: ids, codes, texts and pieces exactly, audio to 1e-5."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models import SHALLOW, Float32, build, shallow, speech, tiny
from tests.properties.strategies import FRAME, configs, cuts, lengths
from tests.talks import Talk, assert_same, talk
from voicechat_mlx.model import VoiceChat

SECONDS = 1.2
SAMPLES = round(16000 * SECONDS)
CONVENTIONS = ("mlx", "nemo")


def signal(kind: str) -> Float32:
    """Speech, silence, a full-scale square wave, a constant, or speech that begins late."""
    time = np.arange(SAMPLES)
    late = np.where(time > SAMPLES // 2, speech(SECONDS, seed=1), 0)
    kinds = {
        "speech": speech(SECONDS),
        "silence": np.zeros(SAMPLES),
        "clipped": np.sign(np.sin(2 * np.pi * time * 200 / 16000)),
        "constant": np.full(SAMPLES, 0.7),
        "late": late,
    }
    return kinds[kind].astype(np.float32)


KINDS = ("speech", "silence", "clipped", "constant", "late")


@functools.cache
def whole(kind: str, prompt: str, conventions: str) -> Talk:
    return talk(tiny(), signal(kind), system_prompt=prompt, conventions=conventions)


@given(
    places=cuts(SAMPLES),
    kind=st.sampled_from(KINDS),
    prompt=st.sampled_from(["", "Be brief."]),
    conventions=st.sampled_from(CONVENTIONS),
)
@settings(max_examples=18)
def test_any_partition_gives_the_same_talk(places: list[int], kind: str, prompt: str, conventions: str) -> None:
    found = talk(tiny(), signal(kind), places, system_prompt=prompt, conventions=conventions)
    assert_same(found, whole(kind, prompt, conventions))


@pytest.mark.parametrize("conventions", CONVENTIONS)
@pytest.mark.parametrize("size", [160, 799, FRAME, FRAME + 1, 5 * FRAME])
def test_equal_pieces_give_the_same_talk(size: int, conventions: str) -> None:
    found = talk(tiny(), signal("speech"), range(size, SAMPLES, size), conventions=conventions)
    assert_same(found, whole("speech", "", conventions))


@pytest.mark.parametrize("conventions", CONVENTIONS)
def test_one_sample_at_a_time_gives_the_same_talk(conventions: str) -> None:
    pcm = speech(0.5, seed=2)
    found = talk(tiny(), pcm, range(1, len(pcm)), conventions=conventions)
    assert_same(found, talk(tiny(), pcm, conventions=conventions))


def test_a_push_longer_than_a_block_gives_the_same_talk() -> None:
    """Long pushes are cut into blocks of 32 frames; 70 frames are two blocks and a bit."""
    model, pcm = shallow(), speech(70 * 0.08)
    expected = talk(model, pcm, range(FRAME, len(pcm), FRAME))
    assert_same(talk(model, pcm), expected)
    assert_same(talk(model, pcm, [100, 40 * FRAME]), expected)


@given(overrides=configs(), length=lengths(), data=st.data(), conventions=st.sampled_from(CONVENTIONS))
@settings(max_examples=20)
def test_any_partition_gives_the_same_talk_in_any_small_configuration(
    overrides: dict[str, Any], length: int, data: st.DataObject, conventions: str
) -> None:
    model, pcm = build(overrides), speech(1.0)[:length]
    found = talk(model, pcm, data.draw(cuts(length)), conventions=conventions)
    assert_same(found, talk(model, pcm, conventions=conventions))


def emitting_always(model: VoiceChat) -> VoiceChat:
    model.rnnt_joint.joint_net[2].bias[-1] = -1e4
    return model


@given(places=cuts(SAMPLES))
@settings(max_examples=3)
def test_any_partition_gives_the_same_transcript_when_every_frame_emits_the_most(places: list[int]) -> None:
    """The bound of ten symbols counts within a frame, wherever a block begins."""
    model = emitting_always(build(SHALLOW))
    found = talk(model, signal("speech"), places)
    assert [frame for frame, _ in found.pieces] == [frame for frame in range(len(found.text_ids)) for _ in range(10)]
    assert_same(found, talk(model, signal("speech")))
