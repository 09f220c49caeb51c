"""The picture of the page in the README: `python -m tests.server.page_picture docs/images/page.png`.

The bundled model, or the checkpoint named second, hears the question of fixtures/ once, through a browser's microphone.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import voicechat_mlx
from tests.server.browser import browser
from tests.server.pages import CHROMIUM, QUESTION, STATE, allow_microphone
from voicechat_mlx.checkpoint import name_of
from voicechat_mlx.server.running import running
from voicechat_mlx.server.service import Service

SECONDS = 7.5
"""Of talk before the picture is taken."""
SIZE = (1280, 900)


def main(place: str, model: str | None = None) -> None:
    """Talk, and take the picture while the talk goes on."""
    assert CHROMIUM is not None, "install chromium"
    microphone = ("--use-fake-device-for-media-stream", f"--use-file-for-fake-audio-capture={QUESTION}%noloop")
    with (
        running(Service(load=lambda: voicechat_mlx.load(model), model_name=name_of(model))) as url,
        tempfile.TemporaryDirectory() as folder,
        browser(CHROMIUM, Path(folder), *microphone) as chromium,
        chromium.page(size=SIZE, prefers_color_scheme="light") as page,
    ):
        allow_microphone(page, url)
        page.open(url)
        page.wait("fetch('health').then((answer) => answer.ok)")  # the model is loaded
        page.click("#talk")
        page.wait(f"{STATE} === 'talking'")
        time.sleep(SECONDS)
        page.run("scrollTo(0, 0)")
        page.picture(Path(place))


if __name__ == "__main__":
    main(*sys.argv[1:])
