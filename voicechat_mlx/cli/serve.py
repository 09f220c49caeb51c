"""`voicechat serve`: talk to a model from a browser, a terminal or any client of OpenAI's Realtime API.

Conversations at ws://HOST:PORT/v1/realtime, a page at http://HOST:PORT/. docs/online.md describes the protocol.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
from typing import Any
from urllib.parse import urlsplit

from voicechat_mlx.cli import options
from voicechat_mlx.cli.streams import flush, say
from voicechat_mlx.errors import InputError
from voicechat_mlx.server.limits import Limits

NEEDED = ("starlette", "uvicorn", "websockets")
TOKEN_VARIABLE = "VOICECHAT_TOKEN"
MOST_SESSIONS = 1000
DEFAULT_PORTS = {"http": ":80", "https": ":443"}
"""Browsers leave these out."""


def add_command(commands: Any) -> None:
    """Register the command with argparse's sub-parsers."""
    parser = commands.add_parser("serve", help="talk to it: an online service and a web page", description=__doc__)
    options.add_model_options(parser)
    parser.add_argument(
        "--host", type=options.path, default="127.0.0.1", metavar="H", help="address to serve (default: 127.0.0.1)"
    )
    parser.add_argument("--port", type=_port, default=8765, metavar="N", help="0 takes a free one (default: 8765)")
    parser.add_argument(
        "--max-sessions",
        type=_sessions,
        metavar="N",
        help=f"conversations at the same time (default: {Limits.max_sessions})",
    )
    parser.add_argument(
        "--token",
        metavar="T",
        help=f"what clients must know; needed for every --host but loopback (or {TOKEN_VARIABLE})",
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        type=_origin,
        default=[],
        metavar="ORIGIN",
        help="also let pages from there connect, for instance https://example.org; may be given several times",
    )
    for name, about in (
        ("session", "a conversation may last"),
        ("idle", "without audio before the server hangs up"),
        ("backlog", "of audio that may wait to be heard"),
        ("startup", "that a client waits for the model"),
    ):
        default = getattr(Limits, f"{name}_seconds")
        parser.add_argument(
            f"--{name}-seconds", type=_seconds, metavar="S", help=f"seconds {about} (default: {default:g})"
        )
    options.add_loading_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Refuse what is unsafe or taken, then load the model while the first clients already wait."""
    require_packages()
    from voicechat_mlx.checkpoint import name_of
    from voicechat_mlx.server.access import Access, require_safe
    from voicechat_mlx.server.running import bind, serve, url_of
    from voicechat_mlx.server.service import Service

    token = arguments.token if arguments.token is not None else os.environ.get(TOKEN_VARIABLE) or None
    require_safe(arguments.host, token)
    service = Service(
        load=lambda: options.load_model(arguments),
        model_name=name_of(arguments.model),
        limits=_limits(arguments),
        access=Access(token=token, origins=frozenset(arguments.allow_origin)),
    )
    with bind(arguments.host, arguments.port) as listener:
        say(f"serving {service.model_name} at {url_of(listener)} (stop with Ctrl-C)")
        flush()
        serve(service, listener)


def require_packages() -> None:
    """Raises InputError with the command that installs what is missing."""
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            raise InputError(f"serve needs {name}; install it with: pip install {' '.join(NEEDED)}")


def _limits(arguments: argparse.Namespace) -> Limits:
    names = ("max_sessions", "session_seconds", "idle_seconds", "backlog_seconds", "startup_seconds")
    given = {name: getattr(arguments, name) for name in names}
    return Limits(**{name: value for name, value in given.items() if value is not None})


def _port(text: str) -> int:
    number = options.whole(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port from 0 to 65535")
    return number


def _sessions(text: str) -> int:
    number = options.whole(text)
    if not 1 <= number <= MOST_SESSIONS:
        raise argparse.ArgumentTypeError(f"{text} is not a number of sessions from 1 to {MOST_SESSIONS}")
    return number


def _origin(text: str) -> str:
    """As browsers spell it, since it is compared letter by letter."""
    try:
        scheme, place, *rest = urlsplit(text.strip().lower())
    except ValueError:
        scheme, place, rest = "", "", []
    if not (scheme and place) or "".join(rest) not in ("", "/"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no origin; give scheme and host, for instance https://example.org"
        )
    return f"{scheme}://{place.removesuffix(DEFAULT_PORTS.get(scheme, ' '))}"


def _seconds(text: str) -> float:
    seconds = options.number(text)
    if not (math.isfinite(seconds) and seconds > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return seconds
