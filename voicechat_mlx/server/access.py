"""Who may talk to the server: a token in constant time, the Origin of browsers, the Host without a token."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from voicechat_mlx.errors import InputError

SUBPROTOCOL = "realtime"
TOKEN_SUBPROTOCOL = "openai-insecure-api-key."
"""A browser cannot set headers on a WebSocket; OpenAI's clients put the key behind this."""
SPELLABLE = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""What an HTTP header and a WebSocket subprotocol can carry."""
UNAUTHORIZED, FORBIDDEN = 401, 403


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """An HTTP status and one line."""

    status: int
    message: str


@dataclass(frozen=True, kw_only=True)
class Access:
    """The rules of one server."""

    token: str | None = None
    origins: frozenset[str] = frozenset()
    """Beside the server's own."""

    def refusal(self, path: str, headers: Mapping[str, str], subprotocols: Sequence[str] = ()) -> Refusal | None:
        """Why this request is not served. `headers` in lower case."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.token is None and not is_loopback(_name(f"//{host}")):
            return Refusal(status=FORBIDDEN, message=f"Host {host[:80]!r} is not a name of this machine's loopback")
        if origin is not None and origin not in self.origins and not _same(origin, host):
            return Refusal(status=FORBIDDEN, message=f"Origin {origin[:80]!r} may not connect; see --allow-origin")
        if self.token is not None and _is_guarded(path) and not self._knows_token(headers, subprotocols):
            return Refusal(status=UNAUTHORIZED, message="token missing or wrong; send Authorization: Bearer TOKEN")
        return None

    def _knows_token(self, headers: Mapping[str, str], subprotocols: Sequence[str]) -> bool:
        assert self.token is not None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        offered = [given.strip()] if scheme.lower() == "bearer" else []
        offered += [name.removeprefix(TOKEN_SUBPROTOCOL) for name in subprotocols if name.startswith(TOKEN_SUBPROTOCOL)]
        token = self.token.encode()
        return any([hmac.compare_digest(word.encode("latin-1", "replace"), token) for word in offered])


def is_loopback(host: str | None) -> bool:
    """Whether a name or address leads to this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def require_safe(host: str, token: str | None) -> None:
    """Raises InputError for an address that others can reach without a token, and for a token nobody can send."""
    if token is None and not is_loopback(host):
        raise InputError(f"--host {host} can be reached by others: add --token, or leave --host at 127.0.0.1")
    if token is not None and not SPELLABLE.fullmatch(token):
        raise InputError(
            "the token must be ASCII letters, digits and any of !#$%&'*+.^_`|~- so that clients can send it"
        )


def _is_guarded(path: str) -> bool:
    return path == "/metrics" or path.startswith("/v1/")


def _name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _same(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == host.lower() != ""
    except ValueError:
        return False
