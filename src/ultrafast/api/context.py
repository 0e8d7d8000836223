"""What the routes of one server share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import msgspec

from ultrafast.api.auth import ApiKeys
from ultrafast.api.body import read_body
from ultrafast.api.comeback import MIN_WAIT_S
from ultrafast.api.exchange import SCOPE_KEY, Exchange
from ultrafast.api.lifecycle import Lifecycle
from ultrafast.api.parse import parse_body
from ultrafast.api.ports import CachePort, ServicePort
from ultrafast.config.settings import ServerSettings
from ultrafast.config.tier_settings import TiersSettings
from ultrafast.core.clock import Clock
from ultrafast.core.errors import UnavailableError
from ultrafast.engine.health import EngineHealth, EngineState
from ultrafast.observe.recorder import Recorder

Body = TypeVar("Body", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class EdgeContext:
    """Given to every route by `api.app`.

    Attributes:
        engine_health: read by the readiness check; never waits for the engine. `engine_state`: its state alone.
        cache: the KV cache, for its administration; None = there is nothing to administer.
        tiers: what each tier promises.
        clock: the clock of the engine and of serving, so that stamps can be compared.
    """

    service: ServicePort
    engine_health: Callable[[], EngineHealth]
    engine_state: Callable[[], EngineState]
    settings: ServerSettings
    recorder: Recorder
    keys: ApiKeys = field(default_factory=ApiKeys)
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    clock: Clock = time.monotonic
    cache: CachePort | None = None
    tiers: TiersSettings = field(default_factory=TiersSettings)

    async def read(self, exchange: Exchange, kind: type[Body]) -> tuple[Body, dict[str, Any]]:
        """Return the body of a POST, checked and as the client wrote it; see `read_body` and `parse_body` for errors."""
        body = await read_body(exchange, self.settings.max_body_bytes, self.settings.read_timeout_s)
        return parse_body(body, kind)

    async def read_if_any(self, exchange: Exchange, kind: type[Body]) -> Body:
        """Return the body of a POST that needs none, checked; without one, `kind` with its defaults."""
        length = exchange.headers.get(b"content-length", b"0")
        if length == b"0" and b"transfer-encoding" not in exchange.headers:
            return kind()
        body = await read_body(exchange, self.settings.max_body_bytes, self.settings.read_timeout_s)
        return parse_body(body, kind)[0] if body.strip() else kind()

    def check_engine(self) -> None:
        """Refuse what needs the engine while there is none. One that restarts is waited for: its requests go on.

        Raises:
            UnavailableError: it still loads, or it has given up.
        """
        state = self.engine_state()
        if state is EngineState.READY:
            return
        if state is EngineState.STARTING:
            raise UnavailableError(
                "The model is still loading.",
                code="model_loading",
                retry_after_s=self.engine_health().ready_in_s or MIN_WAIT_S,
                hint="wait until GET /health/ready answers 200",
            )
        if state in (EngineState.FAILED, EngineState.STOPPED):
            raise UnavailableError(
                "The engine has stopped and serves nothing.",
                code="engine_stopped",
                retry_after_s=30,
                hint="the log of the server says why",
            )


class Described(NamedTuple):
    """What the OpenAPI document says of a route: one sentence, and the struct of its JSON.

    `streams`: server-sent events, each with that JSON. `errors`: statuses beside 401, for which `needs_key` of the route stands.
    """

    summary: str
    answer: type[msgspec.Struct]
    streams: bool = False
    errors: tuple[int, ...] = ()


class ExtraRoute(NamedTuple):
    """A GET route of another layer, for example a dashboard's. `described` is None for the files of a page."""

    path: str
    handle: Callable[[Exchange], Any]
    needs_key: bool = True
    described: Described | None = None


class Endpoint:
    """An ASGI application for one route: notes the route, checks the key and the engine, hands the exchange on."""

    def __init__(
        self,
        context: EdgeContext,
        route: str,
        handle: Callable[[Exchange], Any],
        *,
        needs_key: bool = True,
        needs_engine: bool = True,
        needs_admin: bool = False,
    ) -> None:
        self._keys = context.keys if needs_key and not context.keys.is_open else None
        self._check_engine = context.check_engine if needs_engine else None
        self._needs_admin = needs_admin
        self._route = route
        self._handle = handle

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002 - ASGI's signature
        """Answer one request; the exchange in the scope has everything."""
        await self.answer(scope[SCOPE_KEY])

    async def answer(self, exchange: Exchange) -> None:
        """The same for an exchange at hand."""
        exchange.route = self._route
        if self._keys is not None:
            authorization = exchange.headers.get(b"authorization")
            exchange.key_name = self._keys.check(authorization)
            exchange.tenant = self._keys.tenant(authorization)
            if self._needs_admin:
                self._keys.check_admin(authorization)
        if self._check_engine is not None:
            self._check_engine()
        await self._handle(exchange)
