"""What the page says when something is refused, missing, busy or gone."""

from __future__ import annotations

from tests import models
from tests.server.browser import Browser, Page
from tests.server.conftest import service
from tests.server.pages import (
    STATE,
    allow_microphone,
    chromium,
    is_received,
    needs_browser,
    page,
    received,
    sent,
    talk,
    until,
)
from voicechat_mlx.server.access import Access
from voicechat_mlx.server.limits import Limits
from voicechat_mlx.server.running import running
from voicechat_mlx.server.service import Service
from voicechat_mlx.server.websocket import abort

__all__ = ["chromium", "page"]  # fixtures
pytestmark = needs_browser


def message_after_talk(page: Page) -> str:
    page.click("#talk")
    page.wait(f"!document.getElementById('message').hidden && {STATE} === 'idle'")
    assert page.run("document.getElementById('message').getAttribute('role')") == "alert"
    return page.text("#message")


def test_a_refused_microphone_is_explained(page: Page, url: str) -> None:
    allow_microphone(page, url, "denied")
    assert "microphone was refused" in message_after_talk(page)
    assert sent(page) == []
    allow_microphone(page, url)
    talk(page, 0.3)  # and all is well afterwards
    assert page.run("document.getElementById('message').hidden")


def test_an_absent_microphone_is_explained(chromium: Browser, url: str) -> None:
    none = "navigator.mediaDevices.getUserMedia = async () => { throw new DOMException('no', 'NotFoundError'); };"
    with chromium.page(before=none) as page:
        page.open(url)
        assert "No microphone was found" in message_after_talk(page)


def test_an_address_without_microphones_is_explained(chromium: Browser, url: str) -> None:
    with chromium.page(before="Object.defineProperty(navigator, 'mediaDevices', { value: undefined });") as page:
        page.open(url)
        assert "127.0.0.1" in message_after_talk(page)


def test_a_busy_server_is_explained(chromium: Browser) -> None:
    with running(service(max_sessions=1)) as url, chromium.page() as first, chromium.page() as second:
        for page in (first, second):
            allow_microphone(page, url)
            page.open(url)
        first.click("#talk")
        first.wait(f"{STATE} === 'talking'")
        assert "busy" in message_after_talk(second)
        first.click("#talk")
        first.wait(f"{STATE} === 'idle'")
        talk(second, 0.3)


def test_a_server_that_stops_is_explained_and_the_talk_is_kept(chromium: Browser) -> None:
    with chromium.page() as page:
        with running(service()) as url:
            allow_microphone(page, url)
            page.open(url)
            page.click("#talk")
            until(page, lambda: is_received(page, "response.output_audio.delta"))
        page.wait(f"!document.getElementById('message').hidden && {STATE} === 'idle'")
        assert "server was stopped" in page.text("#message")
        assert not page.run("document.getElementById('save-wav').disabled")
        assert "does not answer" in message_after_talk(page)


def test_a_connection_that_breaks_is_explained(chromium: Browser) -> None:
    made = service()
    with running(made) as url, chromium.page() as page:
        allow_microphone(page, url)
        page.open(url)
        page.click("#talk")
        until(page, lambda: is_received(page, "response.output_audio.delta"))
        (connection,) = made.connections
        connection._loop.call_soon_threadsafe(abort, connection._socket)
        page.wait(f"!document.getElementById('message').hidden && {STATE} === 'idle'")
        assert "connection was lost" in page.text("#message")


def test_the_longest_talk_ends_by_itself_and_says_so(chromium: Browser) -> None:
    with running(service(session_seconds=1.6)) as url, chromium.page() as page:
        allow_microphone(page, url)
        page.open(url)
        assert "as long as the server allows" in message_after_talk(page)
        finished = received(page)[-1]
        assert (finished["reason"], finished["frames"]) == ("limit", 20)


def test_a_token_is_asked_for_and_used(chromium: Browser) -> None:
    guarded = Service(load=models.hasty, model_name="hasty", limits=Limits(), access=Access(token="open-sesame"))
    with running(guarded) as url, chromium.page() as page:
        allow_microphone(page, url)
        page.open(url)
        page.wait("!document.getElementById('token-field').hidden")
        assert "needs a token" in message_after_talk(page)
        assert page.run("document.activeElement.id") == "token"
        page.write("open-sesame")
        talk(page, 0.3)
        assert is_received(page, "voicechat.finished")
