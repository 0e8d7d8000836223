"""Clients that found no capacity come back when there may be some, and not all at once."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest
from tests.component.api.edge import HELLO, client, make
from tests.component.api.fake_service import health, playing

from ultrafast.core.errors import UnavailableError
from ultrafast.engine.health import EngineState

CHAT = "/v1/chat/completions"
NUM_CLIENTS = 40


def waits_s(answers: list[httpx.Response]) -> list[float]:
    for answer in answers:
        assert answer.status_code == 503
        assert answer.json()["error"]["estimated_recovery_ms"] == int(answer.headers["retry-after-ms"])
        assert 0 <= int(answer.headers["retry-after"]) - int(answer.headers["retry-after-ms"]) / 1000 < 1
    return [int(answer.headers["retry-after-ms"]) / 1000 for answer in answers]


@pytest.mark.parametrize(
    ("ready_in_s", "first_s", "last_s"), [(None, 1.0, 3.0), (0.0, 1.0, 3.0), (20.0, 20.0, 30.0), (1000.0, 80.0, 120.0)]
)
async def test_while_the_model_loads(ready_in_s: float | None, first_s: float, last_s: float) -> None:
    loading = replace(health(EngineState.STARTING), ready_in_s=ready_in_s)
    async with client(make(engine_health=lambda: loading)) as http:
        answers = [await http.post(CHAT, json=HELLO) for _ in range(NUM_CLIENTS)]
        probes = [await http.get("/health/ready") for _ in range(NUM_CLIENTS)]
    waits = waits_s(answers)
    assert all(first_s <= wait_s <= last_s + 0.001 for wait_s in waits)
    assert len(set(waits)) > NUM_CLIENTS // 2
    assert len({answer.headers["retry-after"] for answer in answers}) > 1, "not even for clients that know whole seconds only"
    assert not any("x-should-retry" in answer.headers for answer in answers)
    assert all(first_s <= int(probe.headers["retry-after"]) <= last_s + 1 for probe in probes)
    assert len({probe.headers["retry-after"] for probe in probes}) > 1


async def test_while_the_server_shuts_down_or_the_engine_is_gone() -> None:
    setup = make({"m": playing(UnavailableError("gone", retry_after_s=30.0))})
    async with client(setup) as http:
        assert 30.0 <= min(waits_s([await http.post(CHAT, json=HELLO)])) <= 45.001
        setup.lifecycle.begin_drain()
        waits = waits_s([await http.post(CHAT, json=HELLO) for _ in range(NUM_CLIENTS)])
    assert len(set(waits)) > NUM_CLIENTS // 2
