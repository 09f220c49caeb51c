"""Who may connect."""

from __future__ import annotations

import pytest

from voicechat_mlx.errors import InputError
from voicechat_mlx.server.access import Access, is_loopback, require_safe

HERE = {"host": "127.0.0.1:8765"}
WS = "/v1/realtime"


def status(access: Access, path: str, headers: dict[str, str], subprotocols: tuple[str, ...] = ()) -> int:
    refusal = access.refusal(path, headers, subprotocols)
    return refusal.status if refusal else 200


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (HERE, 200),
        ({"host": "localhost:1"}, 200),
        ({"host": "[::1]:8765"}, 200),
        ({"host": "127.8.9.1"}, 200),
        ({"host": "evil.example:8765"}, 403),  # a foreign name that leads here
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "[::1"}, 403),
        ({"host": ""}, 403),
        ({}, 403),
        ({**HERE, "origin": "http://127.0.0.1:8765"}, 200),
        ({**HERE, "origin": "http://127.0.0.1:9999"}, 403),
        ({**HERE, "origin": "http://localhost:8765"}, 403),
        ({**HERE, "origin": "https://evil.example"}, 403),
        ({**HERE, "origin": "null"}, 403),
        ({**HERE, "origin": ""}, 403),
        ({**HERE, "origin": "http://[bad"}, 403),
        ({**HERE, "origin": "https://friend.example"}, 200),
    ],
)
def test_without_a_token_only_this_machines_pages_and_programs_connect(headers: dict[str, str], expected: int) -> None:
    assert status(Access(origins=frozenset(["https://friend.example"])), WS, headers) == expected


@pytest.mark.parametrize(
    ("path", "headers", "subprotocols", "expected"),
    [
        (WS, {}, (), 401),
        (WS, {"authorization": "Bearer secret"}, (), 200),
        (WS, {"authorization": "bearer  secret "}, (), 200),
        (WS, {"authorization": "Bearer Secret"}, (), 401),
        (WS, {"authorization": "Bearer secret2"}, (), 401),
        (WS, {"authorization": "Bearer "}, (), 401),
        (WS, {"authorization": "Bearer \xe9"}, (), 401),
        (WS, {"authorization": "Basic secret"}, (), 401),
        (WS, {"authorization": "secret"}, (), 401),
        (WS, {}, ("realtime", "openai-insecure-api-key.secret"), 200),
        (WS, {}, ("realtime", "openai-insecure-api-key.wrong"), 401),
        (WS, {}, ("realtime", "secret"), 401),
        ("/v1/models", {}, (), 401),
        ("/metrics", {}, (), 401),
        ("/metrics", {"authorization": "Bearer secret"}, (), 200),
        ("/health", {}, (), 200),
        ("/", {}, (), 200),
        ("/page.js", {}, (), 200),
    ],
)
def test_with_a_token_whoever_knows_it_connects_from_anywhere(
    path: str, headers: dict[str, str], subprotocols: tuple[str, ...], expected: int
) -> None:
    assert status(Access(token="secret"), path, {"host": "talk.example", **headers}, subprotocols) == expected


def test_a_token_does_not_let_foreign_pages_in() -> None:
    headers = {"host": "talk.example", "origin": "https://evil.example", "authorization": "Bearer secret"}
    assert status(Access(token="secret"), WS, headers) == 403


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_an_address_that_others_reach_needs_a_token(host: str) -> None:
    with pytest.raises(InputError, match="--token"):
        require_safe(host, None)
    require_safe(host, "secret")


@pytest.mark.parametrize("token", ["", "two words", "schlüssel", "a,b", "line\n"])
def test_a_token_that_clients_cannot_send_is_refused(token: str) -> None:
    with pytest.raises(InputError, match="ASCII"):
        require_safe("127.0.0.1", token)


@pytest.mark.parametrize(
    ("host", "expected"), [("localhost", True), ("127.0.0.1", True), ("::1", True), ("10.0.0.1", False), (None, False)]
)
def test_loopback_is_what_leads_nowhere_else(host: str | None, expected: bool) -> None:
    assert is_loopback(host) is expected
    if expected and host is not None:
        require_safe(host, None)
