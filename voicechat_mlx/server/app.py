"""The addresses: the conversation, the page, health, metrics. Who may not connect is refused before anything else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from voicechat_mlx.server.connection import Connection
from voicechat_mlx.server.metrics import CONTENT_TYPE
from voicechat_mlx.server.protocol import PATH
from voicechat_mlx.server.service import Service, in_loop

WEB = Path(__file__).parent / "web"
POLICY = (
    "default-src 'self'",
    "img-src 'self' data:",
    "media-src 'self' blob:",
    "style-src 'self' 'unsafe-inline'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
)
HEADERS = {
    "content-security-policy": "; ".join(POLICY),
    "permissions-policy": "microphone=(self)",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}
"""With every answer: the page needs nothing from elsewhere, and nobody else may frame it."""


def make_app(service: Service) -> Starlette:
    """The ASGI application; its lifespan starts and stops the worker."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        service.worker.when_loaded(lambda: in_loop(loop, service.tell_loaded))
        service.worker.start()
        yield
        service.worker.stop()

    async def realtime(socket: WebSocket) -> None:
        await Connection(socket, service).run()

    async def health(_: Request) -> Response:
        return JSONResponse(service.health(), 200 if service.worker.state == "ready" else 503)

    async def metrics(_: Request) -> Response:
        return Response(service.metrics_text(), headers={"content-type": CONTENT_TYPE})

    async def models(_: Request) -> Response:
        model = {"id": service.model_name, "object": "model", "created": 0, "owned_by": "local"}
        return JSONResponse({"object": "list", "data": [model]})

    return Starlette(
        routes=[
            WebSocketRoute(PATH, realtime),
            Route("/v1/models", models),
            Route("/health", health),
            Route("/metrics", metrics),
            Mount("/", StaticFiles(directory=WEB, html=True, check_dir=False)),
        ],
        middleware=[Middleware(Guard, service=service)],
        lifespan=lifespan,
    )


class Guard:
    """Asks `Access` about every request."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._access = app, service.access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or hand on."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        headers = HTTPConnection(scope).headers
        refusal = self._access.refusal(scope["path"], headers, scope.get("subprotocols", ()))
        if refusal is None:
            return await self._app(scope, receive, _with_headers(send))
        answer = PlainTextResponse(f"{refusal.message}\n", refusal.status, HEADERS)
        if scope["type"] == "websocket":
            return await WebSocket(scope, receive, send).send_denial_response(answer)
        return await answer(scope, receive, send)


def _with_headers(send: Send) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", []), *added]}
        await send(message)

    return with_headers
