"""Builds the ASGI application: every route, once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from ultrafast.api.auth import ApiKeys
from ultrafast.api.cache import CacheAdmin
from ultrafast.api.context import EdgeContext, Endpoint, ExtraRoute
from ultrafast.api.documents import Documents
from ultrafast.api.edge import Edge, Lifespan
from ultrafast.api.exchange import Exchange
from ultrafast.api.generations import Generations
from ultrafast.api.health import Health
from ultrafast.api.lifecycle import Lifecycle
from ultrafast.api.models import Models
from ultrafast.api.ports import CachePort, ServicePort
from ultrafast.api.slo import SloAccount
from ultrafast.api.tokens import Tokens
from ultrafast.config.settings import ServerSettings
from ultrafast.config.tier_settings import TiersSettings
from ultrafast.core.clock import Clock
from ultrafast.engine.health import EngineHealth, EngineState
from ultrafast.observe.recorder import Recorder


def build_app(
    service: ServicePort,
    engine_health: Callable[[], EngineHealth],
    settings: ServerSettings,
    recorder: Recorder,
    *,
    keys: ApiKeys | None = None,
    lifecycle: Lifecycle | None = None,
    lifespan: Lifespan | None = None,
    extra_routes: Iterable[ExtraRoute] = (),
    clock: Clock = time.monotonic,
    cache: CachePort | None = None,
    tiers: TiersSettings | None = None,
    engine_state: Callable[[], EngineState] | None = None,
) -> Edge:
    """Return the application.

    Args:
        service: see `ServicePort`.
        engine_health: a look at the engine that never waits; for readiness.
        settings: the section `server`.
        recorder: takes the samples; wiring also feeds it the engine's step reports.
        keys: who may call; None = everybody.
        lifecycle: shared with `api.server`, which drains it at shutdown.
        lifespan: entered by `api.server` (or any ASGI server) around all requests.
        extra_routes: of other layers, for example a dashboard, which may also take `/`.
        clock: the clock of engine and serving.
        cache: the engine's KV cache, for its administration.
        tiers: the section `tiers`.
        engine_state: the state out of `engine_health`, if that is to be had for less: every request asks.
    """
    context = EdgeContext(
        service,
        engine_health,
        engine_state or (lambda: engine_health().state),
        settings,
        recorder,
        keys or ApiKeys(),
        lifecycle or Lifecycle(),
        clock,
        cache,
        tiers or TiersSettings(),
    )
    extra_routes = tuple(extra_routes)
    *ours, home = _routes(context, extra_routes)
    extra = [_extra(context, route) for route in extra_routes]
    router = Router([*ours, *extra, home], redirect_slashes=False, default=_refuse_unknown)
    endpoints = [(route, route.endpoint) for route in ours if route.methods == {"POST"}]
    shortcuts = {("POST", route.path): endpoint for route, endpoint in endpoints if isinstance(endpoint, Endpoint)}
    return Edge(context, router, lifespan, shortcuts)


def _routes(context: EdgeContext, extra_routes: tuple[ExtraRoute, ...]) -> list[Route]:
    generations, tokens, models = Generations(context), Tokens(context), Models(context)
    health, documents, cache = Health(context), Documents(extra_routes), CacheAdmin(context)

    def route(method: str, path: str, handle: Callable[[Exchange], object], **needs: bool) -> Route:
        endpoint = Endpoint(context, path.replace(":path", ""), handle, **needs)
        return Route(path, endpoint, methods=[method])

    public = {"needs_key": False, "needs_engine": False}
    # The router tries them in this order.
    return [
        route("POST", "/v1/chat/completions", generations.chat),
        route("POST", "/v1/completions", generations.complete),
        route("GET", "/v1/slo", SloAccount(context).show, needs_engine=False),
        route("GET", "/v1/models", models.list_all),
        route("GET", "/v1/models/{model:path}", models.show),
        route("POST", "/tokenize", tokens.tokenize),
        route("POST", "/detokenize", tokens.detokenize),
        route("GET", "/health/live", health.live, **public),
        route("GET", "/health/ready", health.ready, **public),
        route("GET", "/metrics", health.metrics, needs_key=not context.settings.is_metrics_open, needs_engine=False),
        route("GET", "/admin/cache", cache.show, needs_key=not context.settings.is_metrics_open, needs_engine=False),
        route("POST", "/admin/cache/clear", cache.clear, needs_admin=True),
        route("GET", "/openapi.json", documents.openapi, **public),
        route("GET", "/docs", documents.page, **public),
        route("GET", "/", documents.home, **public),
    ]


def _extra(context: EdgeContext, route: ExtraRoute) -> Route:
    endpoint = Endpoint(context, route.path, route.handle, needs_key=route.needs_key, needs_engine=False)
    return Route(route.path, endpoint, methods=["GET"])


async def _refuse_unknown(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - ASGI's signature
    raise HTTPException(404)
