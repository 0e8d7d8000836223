"""`GET /health/live`, `GET /health/ready`, `GET /metrics`: answered by the API process alone, whatever the engine does."""

from __future__ import annotations

import asyncio
import math

import msgspec

from ultrafast.api.comeback import MIN_WAIT_S, comeback_s
from ultrafast.api.context import EdgeContext
from ultrafast.api.errors import Headers
from ultrafast.api.exchange import Exchange
from ultrafast.engine.health import EngineHealth, EngineState
from ultrafast.observe.metrics import CONTENT_TYPE

_HINTS = {
    "starting": "the model is loading; ask again",
    "restarting": "the engine is being replaced, its requests go on then; ask again",
    "stalled": "no step ends although there is work; the log of the server may say why; the engine is replaced if it stays so",
    "failed": "the engine has given up; the log of the server says why; start the server again",
    "stopped": "the server has stopped; start it again",
    "draining": "the server is shutting down; send requests to another one",
}


class Readiness(msgspec.Struct):
    """`reason`: ready, starting, restarting, stalled, failed, stopped or draining; `hint`: what to do unless it is ready.

    `has_work`: requests have not ended yet, those that wait for a new engine included.
    """

    status: str
    reason: str
    engine: str
    has_work: bool
    is_stalled: bool
    num_restarts: int
    last_step_age_s: float | None
    hint: str | None = None


class Health:
    """The routes for probes and scrapers."""

    def __init__(self, context: EdgeContext) -> None:
        self._context = context

    async def live(self, exchange: Exchange) -> None:
        """Answer `GET /health/live`: this process runs."""
        await exchange.respond(200, [], b'{"status":"live"}')

    async def ready(self, exchange: Exchange) -> None:
        """Answer `GET /health/ready`: new requests will be served; else 503 with the reason."""
        health = self._context.engine_health()
        reason = self._reason(health)
        is_ready = reason == "ready"
        answer = Readiness(
            "ready" if is_ready else "not_ready",
            reason,
            health.state,
            health.has_work,
            health.is_stalled,
            health.num_restarts,
            health.last_step_age_s,
            _HINTS.get(reason),
        )
        headers: Headers = [] if is_ready else _comeback(health.ready_in_s or MIN_WAIT_S)
        await exchange.respond(200 if is_ready else 503, headers, msgspec.json.encode(answer))

    async def metrics(self, exchange: Exchange) -> None:
        """Answer `GET /metrics`. Made on a thread: it takes milliseconds, which streams would feel."""
        text = await asyncio.to_thread(self._context.recorder.metrics.render)
        await exchange.respond(200, [], text, content_type=CONTENT_TYPE)

    def _reason(self, health: EngineHealth) -> str:
        if self._context.lifecycle.is_draining:
            return "draining"
        if health.state is not EngineState.READY:
            return health.state
        return "stalled" if health.is_stalled else "ready"


def _comeback(estimate_s: float) -> Headers:
    wait_s = comeback_s(estimate_s)
    return [(b"retry-after", b"%d" % math.ceil(wait_s)), (b"retry-after-ms", b"%d" % math.ceil(wait_s * 1000))]
