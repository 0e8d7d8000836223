"""The outermost ASGI application: makes the exchange, turns errors into answers, and writes down what happened.

Pure ASGI: nothing between the server and a route wraps `receive` or `send`, so that a route sees the client leave.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext

from starlette.exceptions import HTTPException
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from ultrafast.api.body import discard_body
from ultrafast.api.comeback import spread
from ultrafast.api.context import EdgeContext, Endpoint
from ultrafast.api.errors import ApiError, error_body, error_headers, status_of
from ultrafast.api.exchange import SCOPE_KEY, ClientGoneError, Exchange
from ultrafast.core.errors import UltrafastError
from ultrafast.observe.logs import log_fields

_logger = logging.getLogger("ultrafast.api")
CLIENT_CLOSED_STATUS = 499
"""nginx's status for a client that left before the answer ended; logs only."""
_QUIET_ROUTES = frozenset({"/health/live", "/health/ready", "/metrics"})
_DOUBLED_SLASHES = re.compile("//+")

Lifespan = Callable[[], AbstractAsyncContextManager[None]]


class Edge:
    """See the module.

    Attributes:
        lifespan: context that is entered before the first request and left after the last.
    """

    def __init__(
        self,
        context: EdgeContext,
        router: Router,
        lifespan: Lifespan | None = None,
        shortcuts: Mapping[tuple[str, str], Endpoint] | None = None,
    ) -> None:
        """`shortcuts`: (method, path) of routes without parameters that the router need not be asked for."""
        self.context = context
        self.lifespan: Lifespan = lifespan or nullcontext
        self._router = router
        self._shortcuts = shortcuts or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan of the server."""
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
            return
        assert scope["type"] == "http", "the server offers no websockets"
        context = self.context
        exchange = Exchange(scope, receive, send, context.clock, context.settings.write_stall_timeout_s)
        scope[SCOPE_KEY] = exchange
        # Makes Starlette raise a wrong method instead of answering it in plain text.
        scope["app"] = self
        try:
            await self._serve(exchange, receive, send)
        except ClientGoneError as gone:
            exchange.status = CLIENT_CLOSED_STATUS
            exchange.error_code = gone.reason
        finally:
            self._record(exchange)

    async def _serve(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        scope = exchange.scope
        try:
            endpoint = self._shortcuts.get((scope["method"], scope["path"]))
            if endpoint is None or scope.get("root_path"):
                await self._router(scope, receive, send)
            else:
                await endpoint.answer(exchange)
        except HTTPException as error:
            await self._answer_error(exchange, _routing_error(error, exchange))
        except (ApiError, UltrafastError) as error:
            await self._answer_error(exchange, error)
        except ClientGoneError:
            raise
        except Exception as error:  # noqa: BLE001 - boundary: a bug in one request is that client's 500, never more
            exchange.log_bug(error)
            await self._answer_error(exchange, error)

    async def _answer_error(self, exchange: Exchange, error: Exception) -> None:
        spread(error)
        exchange.note_error(error)
        if exchange.is_started:
            await exchange.abort_connection()
            return
        headers = error_headers(error)
        headers.append((b"openai-processing-ms", exchange.processing_ms(exchange.clock())))
        linger = None
        if _has_unread_body(exchange):
            linger = None if b"expect" in exchange.headers else lambda: discard_body(exchange)
            if (b"connection", b"close") not in headers:
                headers.append((b"connection", b"close"))
        await exchange.respond(status_of(error), headers, error_body(error, exchange.request_id), linger=linger)

    def _record(self, exchange: Exchange) -> None:
        status = exchange.status
        status_class = "aborted" if status in (0, CLIENT_CLOSED_STATUS) else f"{status // 100}xx"
        self.context.recorder.on_response(exchange.route, status_class)
        level = logging.DEBUG if exchange.route in _QUIET_ROUTES else logging.INFO
        if exchange.failure is not None:
            level = logging.ERROR
        if _logger.isEnabledFor(level):
            log_fields(_logger, level, "request", _log_fields(exchange, status or CLIENT_CLOSED_STATUS))

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            async with self.lifespan():
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except UltrafastError as error:
            await send({"type": "lifespan.startup.failed", "message": error.message})
            raise
        await send({"type": "lifespan.shutdown.complete"})


def _log_fields(exchange: Exchange, status: int) -> dict[str, object]:
    return {
        "request_id": exchange.request_id,
        "method": exchange.scope["method"],
        "route": exchange.route,
        "status": status,
        "error_code": exchange.error_code,
        "exception": exchange.failure,
        "key": exchange.key_name,
        "total_s": exchange.clock() - exchange.arrival_s,
        **exchange.log_values(),
    }


def _has_unread_body(exchange: Exchange) -> bool:
    if exchange.is_body_complete:
        return False
    length = exchange.headers.get(b"content-length", b"0")
    return length != b"0" or b"transfer-encoding" in exchange.headers


def _routing_error(error: HTTPException, exchange: Exchange) -> ApiError:
    scope = exchange.scope
    headers = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
    if error.status_code == 405:
        allowed = dict(headers).get(b"allow", b"").decode()
        message = f"{scope['path'][:200]} does not take {scope['method']}; it takes {allowed}."
        return ApiError(405, "method_not_allowed", message, headers=headers)
    path = scope["path"][:200]
    hint = "GET /docs lists what there is"
    if "//" in path:
        hint = f"it has a slash too many: {_DOUBLED_SLASHES.sub('/', path)}"
    return ApiError(error.status_code, "unknown_url", f"There is no {path} here.", hint=hint, headers=headers)
