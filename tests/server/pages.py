"""The page, open in a browser whose microphone says a question again and again; what tests of it share.

What the page sends and gets is read from the browser's own log of its WebSocket, not from the page.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.browser import Browser, Page, browser, find_browser

QUESTION = Path(__file__).parents[2] / "fixtures" / "question.wav"
CHROMIUM = find_browser()
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome is installed")

LISTEN_IN = """
const connect = AudioNode.prototype.connect;
AudioNode.prototype.connect = function (target, ...rest) {
  if (target instanceof AudioDestinationNode && this.context.sampleRate === 22050) {
    const meter = new AnalyserNode(this.context), block = new Float32Array(meter.fftSize);
    connect.call(this, meter);
    window.loudest = 0;
    setInterval(() => {
      meter.getFloatTimeDomainData(block);
      window.loudest = Math.max(window.loudest, ...block.map(Math.abs));
    }, 20);
  }
  return connect.call(this, target, ...rest);
};
"""
"""Measures what goes to the loudspeaker."""
STATE = "document.documentElement.dataset.state"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser whose microphone says the question again and again."""
    assert CHROMIUM is not None
    microphone = ("--use-fake-device-for-media-stream", f"--use-file-for-fake-audio-capture={QUESTION}")
    with browser(CHROMIUM, tmp_path_factory.mktemp("chromium"), *microphone) as found:
        yield found


def allow_microphone(page: Page, url: str, setting: str = "granted") -> None:
    page.call("Browser.setPermission", origin=url, permission={"name": "microphone"}, setting=setting)


@pytest.fixture
def page(chromium: Browser, url: str) -> Iterator[Page]:
    """Open, and allowed to use the microphone."""
    with chromium.page(before=LISTEN_IN) as found:
        allow_microphone(found, url)
        found.open(url)
        yield found


def sent(page: Page) -> list[dict[str, Any]]:
    return [json.loads(told["response"]["payloadData"]) for kind, told in page.collect() if kind.endswith("FrameSent")]


def received(page: Page) -> list[dict[str, Any]]:
    told = page.collect()
    return [json.loads(params["response"]["payloadData"]) for kind, params in told if kind.endswith("FrameReceived")]


def pcm_of(events: list[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(each["audio"]) for each in events if each["type"] == "input_audio_buffer.append")


def is_received(page: Page, type: str) -> bool:
    return any(event["type"] == type for event in received(page))


def until(page: Page, condition: Callable[[], bool]) -> None:
    for _ in range(300):
        if condition():
            return
    raise AssertionError(f"that did not happen; the page says:\n{page.text('body')}")


def talk(page: Page, seconds: float) -> None:
    """Press Talk, let so much be heard, press Stop, and wait for the end."""
    page.click("#talk")
    until(page, lambda: len(pcm_of(sent(page))) >= seconds * 32000)
    page.click("#talk")
    page.wait(f"{STATE} === 'idle'")
