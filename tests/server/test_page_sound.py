"""The page's arithmetic on samples, run by a browser: the resampler and the jitter buffer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.server.browser import Page, browser, find_browser

CHROMIUM = find_browser()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome is installed")
PULL = 128
"""Samples that an audio worklet is asked for at once, by the Web Audio standard."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, shared: tuple[Any, str]) -> Iterator[Page]:
    assert CHROMIUM is not None
    with browser(CHROMIUM, tmp_path_factory.mktemp("chromium")) as found, found.page() as opened:
        opened.open(shared[1])
        yield opened


def resampled(page: Page, samples: np.ndarray, rate: int, to: int, pieces: int) -> np.ndarray:
    """By the page, in pieces of so many samples."""
    script = f"""(async () => {{
        const {{ Resampler }} = await import('/resampler.js');
        const input = Float32Array.from({json.dumps(samples.tolist())});
        const resampler = new Resampler({rate}, {to});
        const output = [];
        for (let k = 0; k < input.length; k += {pieces}) output.push(...resampler.push(input.slice(k, k + {pieces})));
        return [...output, ...resampler.finish()];
    }})()"""
    return np.array(page.run(script))


@pytest.mark.parametrize(("rate", "to"), [(48000, 16000), (44100, 16000), (16000, 22050), (8000, 16000)])
def test_tones_pass_unchanged_and_what_would_fold_back_is_gone(page: Page, rate: int, to: int) -> None:
    time, inside = np.arange(rate // 5) / rate, slice(400, -400)
    wanted = np.arange(to // 5) / to
    nyquist = min(rate, to) / 2
    for pitch in (200, 1000, 0.8 * nyquist):
        found = resampled(page, np.sin(2 * np.pi * pitch * time), rate, to, 4096)
        assert len(found) == len(wanted)
        assert np.abs(found - np.sin(2 * np.pi * pitch * wanted))[inside].max() < 1e-3
    if to < rate:  # the stop band, which begins at the lower Nyquist, is at -80 dB or lower
        for pitch in (nyquist * 1.01, nyquist * 1.5, 0.99 * rate / 2):
            found = resampled(page, np.sin(2 * np.pi * pitch * time), rate, to, 4096)
            assert np.abs(found)[inside].max() < 1e-4


def test_a_constant_stays_the_same_constant(page: Page) -> None:
    assert np.abs(resampled(page, np.full(4410, 0.5), 44100, 16000, 4410)[300:-300] - 0.5).max() < 1e-6


@pytest.mark.parametrize("pieces", [1, 7, 128, 441])
def test_how_sound_is_cut_does_not_change_what_the_resampler_makes_of_it(page: Page, pieces: int) -> None:
    samples = np.random.default_rng(0).uniform(-1, 1, 3000)
    for rate in (48000, 44100):
        whole = resampled(page, samples, rate, 16000, 3000)
        assert np.array_equal(whole, resampled(page, samples, rate, 16000, pieces))


def play(page: Page, arrivals: list[tuple[float, list[float]]], seconds: float) -> dict[str, Any]:
    """What a jitter buffer at 16 kHz makes of samples that come at these moments, read for so long."""
    script = f"""(async () => {{
        const {{ JitterBuffer }} = await import('/jitter.js');
        const buffer = new JitterBuffer(16000), arrivals = {json.dumps(arrivals)}, heard = [];
        const block = new Float32Array({PULL});
        for (let time = 0; time < {seconds}; time += {PULL} / 16000) {{
            while (arrivals.length && arrivals[0][0] <= time) buffer.push(Float32Array.from(arrivals.shift()[1]));
            buffer.pull(block);
            heard.push(...block);
        }}
        const {{ underruns, target, leftOut, fill }} = buffer;
        return {{ heard, underruns, target, leftOut, fill }};
    }})()"""
    return page.run(script)


def frames(count: int, level: float = 0.5) -> list[list[float]]:
    """Frames of 80 ms whose samples can all be told apart, none of them quiet."""
    ramp = level + np.arange(count * 1280) / (count * 1280) / 4
    return ramp.astype(np.float32).reshape(count, 1280).tolist()


def test_frames_that_come_up_to_40_ms_late_are_played_without_a_gap(page: Page) -> None:
    late = np.random.default_rng(1).uniform(0, 0.035, 25)
    late[0] = 0
    sent = frames(25)
    found = play(page, [(0.08 * k + late[k], sent[k]) for k in range(25)], 1.9)
    heard = np.array(found["heard"])
    begin = int(np.flatnonzero(heard)[0])
    assert begin / 16000 <= 0.05  # 40 ms of reserve before the first sample
    assert found["underruns"] == found["leftOut"] == 0
    assert np.array_equal(heard[begin:], np.concatenate(sent)[: len(heard) - begin])


def test_a_frame_that_comes_too_late_is_counted_and_the_reserve_grows_but_nothing_is_lost(page: Page) -> None:
    sent = frames(12)
    arrivals = [(0.08 * k + (0.3 if k >= 6 else 0.0), sent[k]) for k in range(12)]
    found = play(page, arrivals, 2.0)
    heard = np.array(found["heard"])
    assert found["underruns"] == 2  # that one, and the end, of which nobody told
    assert found["target"] == pytest.approx(0.16)
    fade = 64
    assert np.count_nonzero(heard) >= 12 * 1280 - 2
    assert np.count_nonzero(np.isin(heard, np.float32(np.concatenate(sent)))) >= 12 * 1280 - 2 * fade


def test_what_is_too_much_is_left_out_where_it_is_quiet(page: Page) -> None:
    loud, quiet = frames(10), [[0.0] * 1280] * 40
    burst = [(0.0, frame) for frame in quiet[:5]]  # 400 ms at once, then in time
    sent = [*quiet[5:], *loud]
    found = play(page, burst + [(0.08 * k, sent[k]) for k in range(len(sent))], 4.5)
    assert 0.3 <= found["leftOut"] / 16000 <= 0.4
    assert np.array_equal(np.array(found["heard"])[np.flatnonzero(found["heard"])], np.concatenate(loud))


def test_far_too_much_is_left_out_at_once(page: Page) -> None:
    sent = frames(60)
    burst = [(0.0, frame) for frame in sent[:15]]  # 1.2 s
    found = play(page, burst + [(0.08 * k, sent[15 + k]) for k in range(45)], 3.4)
    assert found["leftOut"] / 16000 > 0.9 and found["fill"] / 16000 < 0.3


def test_the_end_is_played_to_the_last_sample_and_is_no_gap(page: Page) -> None:
    script = """(async () => {
        const { JitterBuffer } = await import('/jitter.js');
        const buffer = new JitterBuffer(16000), block = new Float32Array(128), heard = [];
        buffer.push(new Float32Array(300).fill(0.5));
        buffer.end();
        while (!buffer.drained) { buffer.pull(block); heard.push(...block); }
        return [heard.filter((sample) => sample !== 0).length, buffer.underruns];
    })()"""
    assert page.run(script) == [299, 0]  # the very last one is faded to nothing
