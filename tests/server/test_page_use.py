"""The page for everybody: by keyboard, by screen reader, on small screens, in light and dark."""

from __future__ import annotations

import numpy as np
import pytest

from tests.server.browser import CONTROL, Browser, Page
from tests.server.pages import STATE, chromium, is_received, needs_browser, page, until

__all__ = ["chromium", "page"]  # fixtures
pytestmark = needs_browser
SETTINGS = ("prompt", "tools", "microphone", "speaker", "volume")


def test_everything_is_reached_and_used_by_keyboard_alone(page: Page) -> None:
    for expected in ("stage", "farther", "nearer", "talk", "transcript", *SETTINGS):
        page.press("Tab")
        assert page.run("document.activeElement.id") == expected
        assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"

    page.run("document.getElementById('stage').focus()")
    page.press("Enter", CONTROL)  # from anywhere
    page.wait(f"{STATE} === 'talking'")
    until(page, lambda: is_received(page, "voicechat.frame"))
    page.press("Escape")
    page.wait(f"{STATE} === 'idle'")
    assert page.run("document.activeElement.id") == "stage"  # nothing steals the focus
    assert is_received(page, "voicechat.finished")


def test_the_timeline_moves_by_keyboard(page: Page) -> None:
    script = """(async () => {
        const { Timeline } = await import('/timeline.js'), { Session } = await import('/session.js');
        const { makeMovable } = await import('/moving.js');
        const stage = document.getElementById('stage');
        const canvas = stage.querySelector('canvas').cloneNode();
        stage.append(canvas);
        const session = new Session();
        for (let second = 0; second < 60; second++) session.sent(new Int16Array(16000), 0);
        const timeline = (window.timeline = new Timeline(canvas, document.documentElement));
        timeline.resize();
        timeline.show(session);
        makeMovable(stage, timeline);
        stage.focus();
        return timeline.begin;
    })()"""
    at_the_end = page.run(script)
    assert 40 < at_the_end < 60
    page.press("ArrowLeft")
    assert page.run("timeline.begin") == pytest.approx(at_the_end - 1)
    page.press("Home")
    assert page.run("timeline.begin") == 0
    page.press("ArrowRight")
    assert page.run("timeline.begin") == pytest.approx(1)
    page.press("End")
    assert page.run("[timeline.begin, timeline.following]") == [pytest.approx(at_the_end), True]
    span = page.run("timeline.span")
    page.press("-")
    assert page.run("timeline.span") == pytest.approx(2 * span)


def test_every_control_has_a_name_for_screen_readers(page: Page) -> None:
    page.run("document.getElementById('token-field').hidden = false")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "combobox", "textbox", "slider", "image", "canvas", "group", "list", "log", "alert"}
    named = {(node["role"]["value"], node["name"]["value"]) for node in nodes if node.get("name")}
    used = {node["role"]["value"] for node in nodes if not node.get("ignored")} & roles
    nameless = {
        role for role, name in named if role in {"button", "combobox", "textbox", "slider", "image"} and not name
    }
    assert {"button", "combobox", "textbox", "slider", "log"} <= used and nameless == set()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_it_fits_and_can_be_read_on_any_screen(chromium: Browser, url: str, scheme: str, width: int) -> None:
    with chromium.page(size=(width, 800), prefers_color_scheme=scheme) as page:
        page.open(url)
        assert page.run("document.documentElement.scrollWidth") <= width
        read = "getComputedStyle(document.documentElement).getPropertyValue('--{}').trim()"
        paper = page.run(read.format("paper"))
        for name in ("ink", "muted", "user", "assistant", "function"):  # WCAG 2.2, level AA, for text
            assert contrast(page.run(read.format(name)), paper) >= 4.5, (scheme, name)


def contrast(one: str, other: str) -> float:
    """WCAG's contrast of two colours such as #1d1c1a."""

    def luminance(color: str) -> float:
        channels = np.array([int(color[k : k + 2], 16) for k in (1, 3, 5)]) / 255
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
