"""The page in a real browser: a spoken question goes in, its transcript and the answer come out, and can be saved."""

from __future__ import annotations

import json

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from tests import models
from tests.server.answering import PAD, saying, words
from tests.server.browser import Browser, Page
from tests.server.client import heard, joined, sound
from tests.server.pages import (
    QUESTION,
    STATE,
    allow_microphone,
    chromium,
    is_received,
    needs_browser,
    page,
    pcm_of,
    received,
    sent,
    talk,
    until,
)
from voicechat_mlx.offline import generate
from voicechat_mlx.server.running import running
from voicechat_mlx.server.service import Service

__all__ = ["chromium", "page"]  # fixtures
pytestmark = needs_browser
SECONDS_HEARD = 3.0


def letters(text: str) -> str:
    """Without spaces, which lists and line breaks change."""
    return "".join(letter for letter in text if letter > " " and not letter.isspace() and letter != "\ufeff")


def said_on_page(page: Page, who: str) -> str:
    words = f"[...document.querySelectorAll('#transcript .{who} .words')].map(e => e.textContent).join('')"
    return letters(page.run(words))


def loudness(samples: NDArray[np.float32], rate: int) -> NDArray[np.float64]:
    """Decibels in steps of 20 ms, above a floor."""
    step = rate // 50
    blocks = samples[: len(samples) // step * step].reshape(-1, step).astype(np.float64)
    return 20 * np.log10(np.sqrt((blocks**2).mean(axis=1)) + 1e-3)


def test_a_spoken_question_is_heard_and_answered_as_the_library_answers_it(page: Page, chromium: Browser) -> None:
    talk(page, SECONDS_HEARD)
    question = heard(pcm_of(sent(page)))
    events = received(page)

    # the microphone's file has arrived: the loudness of what was sent goes up and down as the file's does
    told = loudness(question, 16000)
    spoken = loudness(np.tile(soundfile.read(QUESTION, dtype="float32")[0], 4), 16000)
    likeness = max(np.corrcoef(told, spoken[k : k + len(told)])[0, 1] for k in range(len(spoken) // 2 - 1))
    assert likeness > 0.7  # the browser's noise suppression and gain control have been at work

    # transcript and answer are those of the library for what was sent, on the wire and on the page
    expected = generate(models.hasty(), question, extra_decoding_seconds=0.0)
    finished = events[-1]
    assert finished["type"] == "voicechat.finished"
    assert (finished["transcript"], finished["text"]) == (expected.user_transcript, expected.text)
    assert expected.text and expected.user_transcript
    assert said_on_page(page, "user") == letters(expected.user_transcript)
    assert said_on_page(page, "assistant") == letters(expected.text)
    assert said_on_page(page, "function") == letters(expected.function_text)
    assert page.run("document.querySelectorAll('#spoken p').length") >= 2  # told to screen readers, too

    # the answer came out of the loudspeaker
    assert page.run("window.loudest") > 0.05
    assert page.text("#delay").endswith(" ms") and page.text("#backlog").endswith(" s")
    assert int(page.text("#gaps")) >= 0

    # it can be saved
    page.click("#save-wav")
    both, rate = soundfile.read(chromium.saved("wav"), dtype="int16")
    answer = sound(events)
    assert (rate, both.shape[1]) == (22050, 2)
    assert np.array_equal(both[: len(answer), 1], answer) and not both[len(answer) :, 1].any()
    user = soxr.resample(question, 16000, 22050)
    left = both[: len(user), 0] / 32768
    middle = slice(500, -500)
    assert np.sqrt(((left - user)[middle] ** 2).mean()) < 0.03 * np.sqrt((user[middle] ** 2).mean())

    page.click("#save-json")
    saved = json.loads(chromium.saved("json").read_text(encoding="utf-8"))
    assert (saved["transcript"], saved["text"]) == (expected.user_transcript, expected.text)
    assert saved["frames"] == expected.frames == len(saved["timing"]) and saved["complete"]
    assert "".join(event["text"] for event in saved["events"] if event["type"] == "assistant") == expected.text
    frames = [event["frame"] for event in saved["events"] if event["type"] == "user"]
    wanted = [event["frame"] for event in events if event["type"].endswith("input_audio_transcription.delta")]
    assert frames == wanted == sorted(frames)


def test_the_system_prompt_belongs_to_the_next_talk(page: Page) -> None:
    page.run("document.getElementById('prompt').focus()")
    page.write("Say one word.")
    talk(page, 0.5)
    expected = generate(
        models.hasty(), heard(pcm_of(sent(page))), system_prompt="Say one word.", extra_decoding_seconds=0.0
    )
    assert joined(received(page), "response.output_audio_transcript.delta") == expected.text


def test_the_page_asks_nobody_but_its_server(page: Page, url: str) -> None:
    talk(page, 0.5)
    asked = [told["request"]["url"] for kind, told in page.collect() if kind == "Network.requestWillBeSent"]
    assert len(asked) > 5
    assert [address for address in asked if not address.startswith((url, "data:", "blob:"))] == []
    faults = [told for kind, told in page.events if kind == "Runtime.exceptionThrown"]
    blocked = [told for kind, told in page.events if kind == "Log.entryAdded" and told["entry"]["level"] == "error"]
    assert faults == blocked == []


def test_a_function_that_the_model_calls_is_answered_by_the_page(chromium: Browser) -> None:
    spelt = [20, *words('<TOOLCALL>[{"name": "current_time", "arguments": {}}]</TOOLCALL>'), 21]
    calling = Service(load=saying([], [PAD, *spelt]), model_name="calling")
    with running(calling) as url, chromium.page() as page:
        allow_microphone(page, url)
        page.open(url)
        page.click("#tools")
        page.click("#talk")
        until(page, lambda: is_received(page, "response.function_call_arguments.done"))
        until(page, lambda: "</TOOL_RESPONSE>" in joined(received(page), "voicechat.function_text.delta"))
        page.click("#talk")
        page.wait(f"{STATE} === 'idle'")
        assert "current_time" in page.text("#transcript .function")
        results = [event["item"] for event in sent(page) if event["type"] == "conversation.item.create"]
    assert [result["call_id"] for result in results] == ["call_0"]
    assert set(json.loads(results[0]["output"])) == {"time", "date"}
