"""What clients do wrong, and how they break. After each the server still serves, its memory is back, and the client was
told something that it can act on.
"""

from __future__ import annotations

import gc
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from websockets.exceptions import ConnectionClosed

from tests import models
from tests.server.client import NATIVE, Client, Event, asking_for, client, heard, pcm16, sound
from tests.server.conftest import service
from tests.server.test_law import ONLY_IDS, assert_same
from voicechat_mlx.offline import generate
from voicechat_mlx.server.connection import Connection
from voicechat_mlx.server.running import bind as bind_as_always
from voicechat_mlx.server.running import running
from voicechat_mlx.server.service import Service
from voicechat_mlx.session import Session

SPOKEN = pcm16(models.speech(0.3))
FORGIVEN_BYTES = 100_000
"""Of MLX's memory: what a model derives and keeps."""


@pytest.fixture(autouse=True)
def _as_before(shared: tuple[Service, str]) -> Iterator[None]:
    """Nothing is left of a test's conversations, and the next one is answered."""
    made, url = shared
    before = mx.get_active_memory()
    yield
    assert_serving(url)
    wait_until(lambda: made.places.taken == made.worker.conversations == len(made.connections) == 0)
    gc.collect()
    assert mx.get_active_memory() - before < FORGIVEN_BYTES
    wait_until(lambda: not alive(Connection))


def alive(kind: type) -> list[object]:
    """Every object of that class; asking weak proxies for theirs would raise."""
    return [thing for thing in gc.get_objects() if type(thing) is kind]


def wait_until(condition: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def assert_serving(url: str) -> None:
    with client(url, ONLY_IDS) as found:
        found.append(SPOKEN)
        assert_same(found.finish(), generate(models.hasty(), heard(SPOKEN), extra_decoding_seconds=0.0))


def kill(found: Client) -> None:
    """As a process that is killed leaves its connection: a reset, no close."""
    raw = found.socket.socket
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("null", "invalid_event"),
        ("[1]", "invalid_event"),
        ('"x"', "invalid_event"),
        ("{", "invalid_json"),
        ("[" * 50_000, "invalid_json"),
        (b"\x00\x01", "binary_not_supported"),
        ('{"type": "tea.make"}', "unknown_event"),
        ('{"type": "input_audio_buffer.append", "audio": "§"}', "invalid_audio"),
        ('{"type": "input_audio_buffer.append", "audio": "AAAA"}', "invalid_audio"),
        (
            '{"type": "session.update", "session": {"audio": {"input": {"format": {"rate": 44100}}}}}',
            "unsupported_audio_format",
        ),
        ('{"type": "input_audio_buffer.commit"}', "input_audio_buffer_commit_empty"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_message_is_refused_and_the_talk_goes_on_as_if_it_had_not_come(
    url: str, message: str | bytes, code: str
) -> None:
    with client(url, ONLY_IDS) as found:
        found.socket.send(message)
        assert found.error()["code"] == code
        found.append(SPOKEN[:4000])
        found.send("input_audio_buffer.commit")
        found.until("input_audio_buffer.committed")
        found.socket.send(message)
        assert found.error()["code"] == code
        found.append(SPOKEN[4000:])
        assert_same(found.finish(), generate(models.hasty(), heard(SPOKEN), extra_decoding_seconds=0.0))


def test_a_second_commit_without_audio_is_refused(url: str) -> None:
    with client(url) as found:
        found.append(SPOKEN)
        found.send("input_audio_buffer.commit")
        item = found.until("input_audio_buffer.committed")[-1]["item_id"]
        found.send("input_audio_buffer.commit", event_id="again")
        error = found.error()
        assert (error["code"], error["event_id"]) == ("input_audio_buffer_commit_empty", "again")
        found.append(SPOKEN)
        found.send("input_audio_buffer.commit")
        assert found.until("input_audio_buffer.committed")[-1]["item_id"] >= item


def test_ten_megabytes_close_with_1009(url: str) -> None:
    with client(url) as found:
        found.append(SPOKEN)
        with pytest.raises(ConnectionClosed):
            found.socket.send("x" * 10_000_000)
            found.until("nothing")
        assert found.socket.close_code == 1009


def test_text_that_is_no_utf8_closes_with_1007(url: str) -> None:
    with client(url) as found:
        found.append(SPOKEN)
        found.socket.send(b"\xff\xfe{", text=True)
        assert found.close_code()[0] == 1007


def test_audio_before_any_update_is_heard_at_openais_rate(url: str) -> None:
    pcm = pcm16(models.speech(0.3, sample_rate=24000))
    with client(url, session=None) as found:
        found.append(pcm)
        found.send("session.update", session=NATIVE, event_id="late")
        error = found.error()
        assert (error["code"], error["event_id"]) == ("session_started", "late")
        events = found.finish()
    assert events[-1]["input_seconds"] == pytest.approx(0.3)
    assert len(sound(events)) == 1920 * events[-1]["frames"]


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"instructions": "Other."}, "session.instructions"),
        ({"audio": {"input": {"format": {"rate": 24000}}}}, "session.audio.input.format"),
        ({"audio": {"output": {"format": {"rate": 24000}}}}, "session.audio.output.format"),
        ({"voicechat": {"seed": 5}}, "session.voicechat.seed"),
        ({"tools": [{"name": "n", "description": "d", "parameters": {}}]}, "session.tools"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_reconfiguring_in_mid_talk_is_refused_and_changes_nothing(url: str, session: Event, param: str) -> None:
    with client(url, ONLY_IDS) as found:
        found.append(SPOKEN[:5000])
        found.send("session.update", session=session)
        error = found.error()
        assert (error["code"], error["param"]) == ("session_started", param)
        found.send("session.update", session=NATIVE)  # changes nothing, so it is let pass
        assert found.until("session.updated")[-1]["session"]["audio"]["input"]["format"]["rate"] == 16000
        found.append(SPOKEN[5000:])
        assert_same(found.finish(), generate(models.hasty(), heard(SPOKEN), extra_decoding_seconds=0.0))


def test_after_finish_nothing_more_is_taken(url: str) -> None:
    with client(url) as found:
        found.append(SPOKEN * 5)
        found.send("voicechat.finish")
        found.append(SPOKEN)
        assert found.error()["code"] == "input_finished"
        assert found.until("voicechat.finished")[-1]["input_seconds"] == pytest.approx(1.5)
        assert found.close_code() == (1000, "finished")


def test_finishing_before_anything_was_said_is_an_empty_talk(url: str) -> None:
    with client(url) as found:
        last = found.finish()[-1]
    assert (last["frames"], last["input_seconds"], last["text"]) == (0, 0.0, "")


@pytest.mark.parametrize(
    "moment", ["greeting", "first append", "mid frame", "mid message", "commit", "answer", "finish"]
)
def test_a_client_that_is_killed_at_any_moment_leaves_nothing(url: str, moment: str) -> None:
    with client(url, session=None) as found:
        if moment != "greeting":
            found.until("session.created")
            found.append(SPOKEN)
        if moment == "mid frame":
            found.append(SPOKEN * 20)
            found.until("response.output_audio.delta")
        if moment == "mid message":
            found.socket.socket.sendall(b"\x81\xfe\x10\x00mask" + b"half of a message")
        if moment == "commit":
            found.send("input_audio_buffer.commit")
        if moment == "answer":
            found.send("response.create")
        if moment == "finish":
            found.send("voicechat.finish", extra_seconds=5)
        kill(found)


def test_two_hundred_visits_leave_nothing(shared: tuple[Service, str]) -> None:
    _, url = shared
    files = Path("/proc/self/fd")
    before = len(list(files.iterdir())) if files.exists() else 0
    for visit in range(200):
        with client(url, session=None) as found:
            if visit % 4 > 0:
                found.append(SPOKEN[: 2 * visit])
            if visit % 4 > 1:
                found.receive()
            if visit % 4 > 2:
                kill(found)
        wait_until(lambda: shared[0].places.taken < 8)
    wait_until(lambda: not shared[0].connections)
    gc.collect()
    wait_until(lambda: not alive(Session))
    wait_until(lambda: not files.exists() or len(list(files.iterdir())) <= before + 2)


def small_window(url: str) -> socket.socket:
    """A connection that takes in little at a time."""
    host, port = url.removeprefix("http://").split(":")
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect((host, int(port)))
    return raw


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose system holds little that is unsent."""

    def bind(host: str, port: int) -> socket.socket:
        listener = bind_as_always(host, port)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return listener

    monkeypatch.setattr("voicechat_mlx.server.running.bind", bind)


@pytest.mark.usefixtures("small_buffers")
def test_a_slow_reader_loses_nothing_and_holds_nobody_up() -> None:
    pcm = pcm16(models.speech(1.5))
    with running(service(outgoing_bytes=10_000)) as url:
        with client(url, ONLY_IDS, sock=small_window(url), max_queue=1) as slow:
            slow.append(pcm)
            slow.send("voicechat.finish")
            assert_serving(url)
            events = []
            while not events or events[-1]["type"] != "voicechat.finished":
                time.sleep(0.005)
                events.append(slow.receive())
        assert_same(events, generate(models.hasty(), heard(pcm), extra_decoding_seconds=0.0))


@pytest.mark.usefixtures("small_buffers")
def test_a_reader_that_has_stopped_is_dropped() -> None:
    made = service(outgoing_bytes=50_000, send_seconds=0.5)
    with running(made) as url, client(url, asking_for("frames"), sock=small_window(url), max_queue=1) as stuck:
        stuck.append(bytes(2 * 16000 * 15))
        wait_until(lambda: made.metrics.errors["slow_reader"] == 1)
        wait_until(lambda: made.places.taken == made.worker.conversations == 0)
        assert_serving(url)
        with pytest.raises(ConnectionClosed):
            stuck.until("nothing")
        assert stuck.socket.close_code == 1006


def test_a_jittered_writer_is_answered_as_a_steady_one(url: str) -> None:
    generator = random.Random(0)
    with client(url, ONLY_IDS) as found:
        begin = 0
        while begin < len(SPOKEN):
            count = 2 * generator.randint(1, 1500)
            found.append(SPOKEN[begin : begin + count])
            begin += count
            time.sleep(generator.choice([0, 0, 0.001, 0.05]))
        assert_same(found.finish(), generate(models.hasty(), heard(SPOKEN), extra_decoding_seconds=0.0))


def test_a_flood_of_requests_is_answered_one_by_one(url: str) -> None:
    with client(url) as found:
        for number in range(2000):
            found.send("response.cancel", event_id=str(number))
        answers = [found.error() for _ in range(2000)]
    assert [answer["event_id"] for answer in answers] == [str(number) for number in range(2000)]
    assert {answer["code"] for answer in answers} == {"response_cancel_not_active"}
