"""Chromium without a window, driven over its DevTools protocol (https://chromedevtools.github.io/devtools-protocol/)."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--remote-debugging-port=0", "--autoplay-policy=no-user-gesture-required", "--force-color-profile=srgb"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,1000"),
)
START_SECONDS = 30.0
WAIT_SECONDS = 60.0
"""For something to happen on a page; generous, since the tests' machine may be busy."""
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "Home": 36, "End": 35, "ArrowLeft": 37, "ArrowRight": 39, " ": 32}
SHIFT, CONTROL = 8, 2


def find_browser() -> str | None:
    """The path of a Chromium or Chrome."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One tab."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._last_id = socket, 0
        self.events: list[tuple[str, dict[str, Any]]] = []
        """Everything the browser told on its own account: (method, params)."""

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol and its result."""
        self._last_id += 1
        self._socket.send(json.dumps({"id": self._last_id, "method": method, "params": params}))
        while (answer := self._receive(WAIT_SECONDS)).get("id") != self._last_id:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str, seconds: float = WAIT_SECONDS) -> Any:
        """Until the expression is true; its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, f"{script} stayed {value!r}; the page says:\n{self.text('body')}"
            time.sleep(0.05)
        return value

    def open(self, url: str) -> None:
        """Go there and wait until it is complete."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def text(self, selector: str) -> str:
        """What an element shows."""
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def click(self, selector: str) -> None:
        """With the mouse, in the middle of an element."""
        box = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{box}.scrollIntoView({{block: 'center'}})")
        x, y = self.run(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({box}.getBoundingClientRect())")
        for type in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=type, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, modifiers: int = 0) -> None:
        """A key down and up."""
        fields: dict[str, Any] = {"key": key, "modifiers": modifiers, "windowsVirtualKeyCode": KEYS.get(key, 0)}
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        self.call("Input.dispatchKeyEvent", type="keyDown", **fields, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **fields)

    def write(self, text: str) -> None:
        """As if typed into what has the focus."""
        self.call("Input.insertText", text=text)

    def picture(self, path: Path) -> None:
        """What is seen, as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def collect(self, seconds: float = 0.2) -> list[tuple[str, dict[str, Any]]]:
        """Take in what the browser still has to tell; all its events so far."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._receive(left)
            except TimeoutError:
                break
        return self.events

    def _receive(self, seconds: float) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._socket.recv(timeout=seconds))
        if "method" in message:
            self.events.append((message["method"], message["params"]))
        return message


class Browser:
    """One process with a profile of its own."""

    def __init__(self, port: int, folder: Path) -> None:
        self._port, self.folder = port, folder

    @contextmanager
    def page(self, *, before: str = "", size: tuple[int, int] = (1280, 1000), **media: str) -> Iterator[Page]:
        """A new tab. `before` is run ahead of the page's own scripts; `media` are features such as dark colours."""
        request = Request(f"http://127.0.0.1:{self._port}/json/new?about:blank", method="PUT")
        with urlopen(request) as answer:
            target = json.load(answer)
        with connect(target["webSocketDebuggerUrl"], max_size=None, compression=None) as socket:
            page = Page(socket)
            for domain in ("Page", "Runtime", "Network", "Log"):
                page.call(f"{domain}.enable")
            page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(self.folder))
            page.call("Page.addScriptToEvaluateOnNewDocument", source=before)
            features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
            page.call("Emulation.setEmulatedMedia", features=features)
            width, height = size
            metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
            page.call("Emulation.setDeviceMetricsOverride", **metrics)
            yield page
            page.call("Page.close")

    def saved(self, ending: str) -> Path:
        """A file that a page let the user save."""
        found: list[Path] = []
        _until(lambda: found.extend(self.folder.glob(f"*.{ending}")) or bool(found))
        return found[0]


@contextmanager
def browser(path: str, folder: Path, *flags: str) -> Iterator[Browser]:
    """A browser whose profile and saved files are in `folder`."""
    profile = folder / "profile"
    command = [path, *FLAGS, f"--user-data-dir={profile}", *flags, "about:blank"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            told = profile / "DevToolsActivePort"
            _until(lambda: told.is_file() and told.read_text().count("\n") > 0)
            yield Browser(int(told.read_text().split()[0]), folder)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the browser did not do that in time"
        time.sleep(0.05)
