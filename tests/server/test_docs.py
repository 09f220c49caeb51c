"""docs/online.md and the code say the same."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests import models
from tests.server.answering import BOS, EOS, PAD, saying, words
from tests.server.client import pcm16
from voicechat_mlx.server import messages
from voicechat_mlx.server.connection import CLOSE_CODES
from voicechat_mlx.server.limits import Limits
from voicechat_mlx.server.protocol import NO_MEANING_HERE
from voicechat_mlx.server.running import running
from voicechat_mlx.server.service import Service

PAGE = (Path(__file__).parents[2] / "docs" / "online.md").read_text(encoding="utf-8")
SOURCES = Path(messages.__file__).parent.glob("*.py")


def kinds(parent: type) -> list[type[Any]]:
    return [kind for child in parent.__subclasses__() for kind in [child, *kinds(child)]]


def is_in_a_table(name: str) -> bool:
    """As `a.b.c`, or as the second of "`a.b.d` / `.c`"."""
    stem, _, last = name.rpartition(".")
    return any(f"`{name}`" in row or (f"`{stem}." in row and f"`.{last}`" in row) for row in PAGE.splitlines())


def test_every_event_that_is_sent_is_described() -> None:
    sent = {kind.type for kind in kinds(messages.Message) if "type" in vars(kind)}
    assert len(sent) > 20
    assert not [name for name in sent if not is_in_a_table(name)]


def test_every_error_code_is_described() -> None:
    code = re.compile(r'(?:ProtocolError|error|hang_up)\(\s*"([a-z_]+)"')
    found = {name for source in SOURCES for name in code.findall(source.read_text(encoding="utf-8"))}
    assert len(found) > 20
    assert not [name for name in {*found, *CLOSE_CODES} if f"`{name}`" not in PAGE]


def test_every_close_code_stands_beside_its_error() -> None:
    for name, code in CLOSE_CODES.items():
        assert re.search(rf"^\| `{name}`(, `\w+`)* \| {code} \|", PAGE, re.M) or re.search(
            rf"^\| (`\w+`, )+`{name}` \| {code} \|", PAGE, re.M
        )


def test_every_limit_is_described_with_its_default() -> None:
    rows = PAGE.partition("## Limits")[2].partition("##")[0]
    for name, value in Limits().as_dict().items():
        shown = f"{value:,}".replace(",", " ") if isinstance(value, int) else f"{value:g}"
        assert re.search(rf"^\| .*`{name}`.* \| .*\b{shown}\b", rows, re.M), name


def test_events_without_meaning_are_named() -> None:
    assert all(is_in_a_table(name) or name.rpartition(".")[2] in PAGE for name in NO_MEANING_HERE)


@pytest.mark.filterwarnings("default")
def test_the_example_works() -> None:
    example = re.search(r"```python\n(.*?)```", PAGE, re.S)
    assert example is not None
    load = saying([PAD, BOS, *words("Hi"), EOS])
    with running(Service(load=load, model_name="scripted")) as url:
        names: dict[str, Any] = {}
        exec(example[1].replace("http://127.0.0.1:8765", url), names)
        question = pcm16(models.speech(0.08, sample_rate=24000))
        answer = asyncio.run(asyncio.wait_for(names["main"](question), 60))
    assert len(answer) % 2 == 0 and len(answer) > 2 * 1920
