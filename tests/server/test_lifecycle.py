"""From loading to stopping: who waits, who is refused, who is told to leave."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

from tests import models
from tests.server.client import NATIVE, Client, asking_for, client, pcm16
from tests.server.conftest import service
from tests.server.test_faults import assert_serving, kill, wait_until
from voicechat_mlx.errors import AudioError, CheckpointError
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.server.access import Access
from voicechat_mlx.server.limits import Limits
from voicechat_mlx.server.patience import ImpatientHttp
from voicechat_mlx.server.running import running
from voicechat_mlx.server.service import Service
from voicechat_mlx.session import Session

SPOKEN = pcm16(models.speech(0.3))


class SlowLoad:
    """A model that is loaded when the test says so."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self) -> VoiceChat:
        assert self.go.wait(60)
        return models.hasty()


@contextmanager
def loading(**limits: float) -> Iterator[tuple[Service, str, SlowLoad]]:
    load = SlowLoad()
    made = Service(load=load, model_name="slow", limits=Limits(**limits))
    try:
        with running(made) as url:
            yield made, url, load
            load.go.set()
    finally:
        load.go.set()


def get(url: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    """Status, body and headers."""
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), dict(error.headers)


def handshake_status(url: str, **options: Any) -> int:
    from websockets.exceptions import InvalidStatus

    try:
        with client(url, session=None, **options):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


def test_whoever_connects_while_the_model_is_loaded_waits_and_is_then_heard() -> None:
    with loading() as (_, url, load), client(url, session=None) as found:
        assert found.receive()["type"] == "voicechat.loading"
        found.send("session.update", session=NATIVE)
        found.append(SPOKEN)
        status, body, _ = get(url + "/health")
        assert (status, json.loads(body)["status"]) == (503, "loading")
        load.go.set()
        created, updated = found.receive(), found.receive()
        assert (created["type"], updated["type"]) == ("session.created", "session.updated")
        assert updated["session"]["audio"]["input"]["format"]["rate"] == 16000
        assert found.finish()[-1]["input_seconds"] == pytest.approx(0.3)
        assert get(url + "/health")[0] == 200


def test_who_leaves_while_the_model_is_loaded_frees_the_place() -> None:
    with loading(max_sessions=1) as (made, url, load):
        for leave in (kill, lambda found: found.socket.close()):
            with client(url, session=None) as found:
                found.append(SPOKEN)
                wait_until(lambda: made.places.taken == 1)
                leave(found)
            wait_until(lambda: made.places.taken == 0)
        load.go.set()
        assert_serving(url)


def test_updates_while_the_model_is_loaded_cannot_pile_up() -> None:
    """Each would be answered with the whole session, all at once."""
    with loading() as (made, url, load), client(url, session=None) as found:
        found.until("voicechat.loading")
        for _ in range(18):
            found.send("session.update", session=NATIVE)
        wait_until(lambda: made.metrics.errors["backlog_full"] == 2)
        load.go.set()
        found.until("session.created")
        kinds = [found.receive()["type"] for _ in range(18)]
        assert kinds == ["session.updated"] * 16 + ["error"] * 2
        found.send("session.update", session=NATIVE)
        assert found.receive()["type"] == "session.updated"


def test_who_floods_and_leaves_while_the_model_is_loaded_frees_the_place() -> None:
    with loading(outgoing_bytes=10_000) as (made, url, _):
        with client(url, session=None) as found:
            found.until("voicechat.loading")
            found.flood(200, "tea.make")
            assert found.error()["code"] == "server_busy"
            assert found.close_code() == (1013, "server_busy")
        wait_until(lambda: made.places.taken == 0)


def test_waiting_for_the_model_has_an_end() -> None:
    with loading(startup_seconds=0.2) as (_, url, _), client(url, session=None) as found:
        assert found.error()["code"] == "startup_timeout"
        assert found.close_code() == (1013, "startup_timeout")


def test_a_model_that_cannot_be_loaded_is_told_to_everybody() -> None:
    def load() -> VoiceChat:
        raise CheckpointError("model.safetensors is gone")

    with running(Service(load=load, model_name="broken")) as url, client(url, session=None) as found:
        assert found.error()["code"] == "startup_failed"
        assert found.close_code() == (1011, "startup_failed")
        status, body, _ = get(url + "/health")
        assert (status, json.loads(body)["status"]) == (503, "failed")


def test_when_all_places_are_taken_the_next_one_is_told_so_and_comes_in_later() -> None:
    made = service(max_sessions=1)
    with running(made) as url:
        with client(url) as first:
            with client(url, session=None) as second:
                error = second.error()
                assert (error["type"], error["code"]) == ("server_error", "server_busy")
                assert second.close_code() == (1013, "server_busy")
            first.append(SPOKEN)
            assert first.finish()[-1]["reason"] == "finished"
        wait_until(lambda: made.places.taken == 0)
        assert_serving(url)


def test_who_is_silent_too_long_is_sent_away() -> None:
    with running(service(idle_seconds=0.3)) as url, client(url) as found:
        for _ in range(5):  # requests without audio do not count
            time.sleep(0.05)
            found.send("session.update", session={})
        assert found.error()["code"] == "idle_timeout"
        assert found.close_code() == (1008, "idle_timeout")


def test_a_talk_ends_at_its_limit() -> None:
    with running(service(session_seconds=0.4)) as url, client(url, asking_for("frames")) as found:
        found.append(SPOKEN * 4)
        events = found.until("voicechat.finished")
        assert (events[-1]["reason"], events[-1]["frames"]) == ("limit", 5)  # 0.4 s / 0.08 s
        done = next(event for event in events if event["type"] == "response.done")["response"]
        assert (done["status"], done["status_details"]["reason"]) == ("incomplete", "max_output_tokens")
        assert found.close_code() == (1000, "finished")


def test_who_stays_without_talking_is_sent_away_in_the_end() -> None:
    with running(service(session_seconds=0.3, idle_seconds=0.6)) as url, client(url) as found:
        found.append(bytes(20))
        for _ in range(8):
            time.sleep(0.1)
            found.append(bytes(2))
        assert found.error()["code"] == "session_expired"
        assert found.close_code() == (1008, "session_expired")


def test_when_the_server_stops_everybody_is_told_and_closed_with_1001() -> None:
    told: list[tuple[str, Any]] = []

    def listen(found: Client) -> None:
        told.append((found.error()["code"], found.close_code()))

    with ExitStack() as server:
        url = server.enter_context(running(service()))
        with client(url) as quiet, client(url) as talking:
            talking.append(SPOKEN * 20)
            talking.until("response.output_audio.delta")
            listeners = [threading.Thread(target=listen, args=(found,)) for found in (quiet, talking)]
            for thread in listeners:
                thread.start()
            server.close()
            for thread in listeners:
                thread.join(20)
    assert told == [("server_shutting_down", (1001, "server_shutting_down"))] * 2


def test_a_fault_of_the_model_ends_that_talk_alone(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heard_by = Session.push

    def breaks_at_a_scream(session: Session, pcm: np.ndarray) -> Any:
        if np.abs(pcm).max(initial=0) > 0.99:
            raise RuntimeError("a kernel broke")
        return heard_by(session, pcm)

    monkeypatch.setattr(Session, "push", breaks_at_a_scream)
    with client(url) as calm, client(url) as found:
        calm.append(SPOKEN)
        found.append(SPOKEN)
        found.until("response.output_audio.delta")
        found.append(b"\x00\x80" * 2000)
        assert found.error()["code"] == "internal_error"
        assert found.close_code() == (1011, "internal_error")
        assert calm.finish()[-1]["reason"] == "finished"


def test_an_answer_that_cannot_be_told_ends_that_talk_with_a_reason(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_number(samples: np.ndarray) -> Any:
        raise AudioError("sample 3 is nan")

    monkeypatch.setattr("voicechat_mlx.server.resampling.pcm16", no_number)
    with client(url) as found:
        found.append(SPOKEN)
        assert found.error()["code"] == "internal_error"
        assert found.close_code() == (1011, "internal_error")


@pytest.mark.parametrize(
    "sent", [b"", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"], ids=["nothing", "half a request"]
)
def test_a_connection_that_asks_for_nothing_is_closed(url: str, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(ImpatientHttp, "request_seconds", 0.1)
    place = urllib.parse.urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=20) as silent:
        silent.sendall(sent)
        assert silent.recv(1) == b""


def test_health_metrics_and_models_say_what_is_served(url: str) -> None:
    with client(url) as found:
        found.append(SPOKEN)
        found.until("response.output_audio.delta")
        found.socket.send("null")
        found.error()
        status, body, headers = get(url + "/metrics")
    lines = dict(line.rsplit(" ", 1) for line in body.splitlines() if not line.startswith("#"))
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    assert (lines["voicechat_model_loaded"], lines["voicechat_sessions_limit"]) == ("1", "10")
    assert int(lines["voicechat_sessions"]) >= 1 and int(lines["voicechat_frame_seconds_count"]) >= 1
    assert lines['voicechat_frame_seconds_bucket{le="+Inf"}'] == lines["voicechat_frame_seconds_count"]
    assert int(lines['voicechat_errors_total{code="invalid_event"}']) >= 1
    health = json.loads(get(url + "/health")[1])
    assert health["status"] == "ok" and health["model"] == "hasty" and health["limits"]["message_bytes"] == 1 << 20
    assert json.loads(get(url + "/v1/models")[1])["data"][0]["id"] == "hasty"


def test_the_handshake_asks_for_the_token_and_the_origin() -> None:
    made = Service(load=models.hasty, model_name="m", access=Access(token="secret"))
    bearer = {"Authorization": "Bearer secret"}
    with running(made) as url:
        assert handshake_status(url) == 401
        assert handshake_status(url, additional_headers={"Authorization": "Bearer wrong"}) == 401
        assert handshake_status(url, additional_headers=bearer) == 101
        assert handshake_status(url, subprotocols=["realtime", "openai-insecure-api-key.secret"]) == 101
        assert handshake_status(url, additional_headers=bearer, origin="https://evil.example") == 403
        assert get(url + "/metrics")[0] == get(url + "/v1/models")[0] == 401
        assert get(url + "/metrics", **bearer)[0] == 200
        assert get(url + "/health")[0] in (200, 503)
        assert get(url + "/health", Host="evil.example")[0] in (200, 503)  # a token guards what matters


def test_without_a_token_foreign_names_and_pages_are_refused(url: str) -> None:
    assert get(url + "/health", Host="evil.example")[0] == 403
    assert get(url + "/health", Origin="https://evil.example")[0] == 403
    assert handshake_status(url, origin="https://evil.example") == 403
    assert handshake_status(url, origin=url) == 101


def test_every_answer_says_that_nobody_may_frame_it_or_load_from_elsewhere(url: str) -> None:
    for path in ("/health", "/no-such-page"):
        headers = get(url + path)[2]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    assert get(url + "/../service.py")[0] == get(url + "/%2e%2e/service.py")[0] == 404
