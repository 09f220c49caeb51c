"""Online equals offline: through the socket come the ids, codes and samples that `generate` finds for that audio."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest
import soxr
from hypothesis import given
from hypothesis import strategies as st

from tests import models
from tests.server.client import Event, asking_for, client, heard, joined, pcm16, sound
from tests.server.drawing import drawn
from voicechat_mlx.offline import VoiceChatResult, generate

HALF_A_STEP = 0.5 / 32768 + 1e-5
"""Rounding to PCM16, and the 1e-5 that splits may change in float32 audio."""
ONLY_IDS = asking_for("ids", "codes")


def talk(url: str, pcm: bytes, sizes: list[int], session: Event, extra_seconds: float = 0.0) -> list[Event]:
    """Append in pieces of so many samples, in turn, until all is sent; then finish."""
    edges, place = [0], 0
    while edges[-1] < len(pcm) // 2:
        edges.append(min(edges[-1] + sizes[place % len(sizes)], len(pcm) // 2))
        place += 1
    with client(url, session) as found:
        for begin, end in pairwise(edges):
            found.append(pcm[2 * begin : 2 * end])
        return found.finish(extra_seconds)


def assert_same(events: list[Event], expected: VoiceChatResult) -> None:
    last = events[-1]
    assert last["type"] == "voicechat.finished" and last["reason"] == "finished"
    assert last["text_tokens"] == expected.text_tokens.tolist()
    assert last["function_tokens"] == expected.function_tokens.tolist()
    assert last["audio_codes"] == expected.audio_codes.tolist()
    assert last["frames"] == len(expected.text_tokens)
    assert (last["text"], last["function_text"]) == (expected.text, expected.function_text)
    assert last["transcript"] == expected.user_transcript
    assert joined(events, "response.output_audio_transcript.delta") == expected.text
    assert joined(events, "voicechat.function_text.delta") == expected.function_text
    assert joined(events, "conversation.item.input_audio_transcription.delta") == expected.user_transcript


@pytest.mark.parametrize(
    "sizes", [[1], [1, 5000], [7, 200, 1], [159, 160, 161], [1280], [1279, 1281], [201, 1280], [4999], [5000]], ids=str
)
def test_online_equals_offline_for_appends_of_any_size(url: str, sizes: list[int]) -> None:
    count = 3000 if sizes == [1] else 9000  # a message for each sample is slow in the client, not in the server
    pcm = pcm16(models.speech(1.0, seed=3)[:count])
    expected = generate(models.hasty(), heard(pcm), extra_decoding_seconds=0.0)
    events = talk(url, pcm, sizes, ONLY_IDS)
    assert_same(events, expected)
    found = sound(events) / 32768
    assert found.shape == expected.audio.shape
    assert np.abs(found - np.clip(expected.audio, -1, 32767 / 32768)).max() <= HALF_A_STEP


@drawn(8)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=8), st.integers(1, 9000), st.integers(0, 3))
def test_online_equals_offline_however_the_sound_is_cut(url: str, sizes: list[int], count: int, seed: int) -> None:
    pcm = pcm16(models.speech(1.0, seed=seed)[:count])
    sizes = [max(size, count // 300) for size in sizes]  # a few hundred messages are enough
    assert_same(talk(url, pcm, sizes, ONLY_IDS), generate(models.hasty(), heard(pcm), extra_decoding_seconds=0.0))


def test_the_prompt_the_seed_and_silence_at_the_end_mean_what_they_mean_offline(url: str) -> None:
    pcm = pcm16(models.speech(0.4, seed=1))
    options = {"system_prompt": "Say one word.", "seed": 7}
    expected = generate(models.hasty(), heard(pcm), extra_decoding_seconds=0.5, **options)
    session = asking_for("ids", "codes", instructions="Say one word.")
    session["voicechat"]["seed"] = 7
    assert_same(talk(url, pcm, [1234], session, extra_seconds=0.5), expected)


@pytest.mark.parametrize(("rate_in", "rate_out"), [(24000, 24000), (22050, 16000), (16000, 24000)])
def test_other_rates_are_resampled_as_the_whole_file_would_be(url: str, rate_in: int, rate_out: int) -> None:
    pcm = pcm16(models.speech(0.7, seed=2, sample_rate=rate_in))
    inside = heard(pcm) if rate_in == 16000 else soxr.resample(heard(pcm), rate_in, 16000)
    expected = generate(models.hasty(), inside, extra_decoding_seconds=0.0)
    session = asking_for("ids", "codes")
    session["audio"] = {
        "input": {"format": {"type": "audio/pcm", "rate": rate_in}},
        "output": {"format": {"type": "audio/pcm", "rate": rate_out}},
    }
    events = talk(url, pcm, [997, 1, 2000], session)
    assert_same(events, expected)
    outside = np.clip(soxr.resample(expected.audio, 22050, rate_out), -1, 32767 / 32768)
    found = sound(events) / 32768
    assert found.shape == outside.shape
    assert np.abs(found - outside).max() <= 2 * HALF_A_STEP  # the filter adds up differences of 1e-5


def test_frames_are_numbered_and_their_sound_follows_by_one(url: str) -> None:
    with client(url, asking_for("frames")) as found:
        found.append(pcm16(models.speech(0.5)))
        events = found.finish()
    reports = [event["frame"] for event in events if event["type"] == "voicechat.frame"]
    deltas = [event["frame"] for event in events if event["type"] == "response.output_audio.delta"]
    assert reports == list(range(events[-1]["frames"]))  # 8000 samples: 51 mel rows, (51 - 2) // 8 + 2 = 8 frames
    assert len(reports) == 8
    assert deltas == sorted(deltas) and deltas[0] == 0
    sizes = [len(sound([event])) // 1764 for event in events if event["type"] == "response.output_audio.delta"]
    assert deltas == [0, *accumulate(sizes)][:-1]
