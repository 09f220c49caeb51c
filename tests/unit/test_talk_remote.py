"""`talk --url` with something that is no `voicechat serve`: one line, at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from websockets.sync.server import ServerConnection, serve

from voicechat_mlx.cli.talk_remote import remote
from voicechat_mlx.errors import VoiceChatError


@contextmanager
def stranger(message: str | bytes) -> Iterator[str]:
    """A WebSocket server that says this to everybody, and its URL."""

    def greet(socket: ServerConnection) -> None:
        socket.send(message)
        for _ in socket:
            pass

    with serve(greet, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("message", ["hello", "[1]", "{}", '{"type": 3}', b"\x00\xff", "[" * 5000], ids=repr)
def test_a_server_of_another_kind_is_named_instead_of_waited_for(message: str | bytes) -> None:
    with (
        stranger(message) as url,
        pytest.raises(VoiceChatError, match="is no event"),
        remote(url, token=None, prompt=None, seed=0),
    ):
        pass
