"""`/v1/slo` and the headers with a request's own objectives, through the application."""

from __future__ import annotations

import pytest
from tests.component.api.edge import HELLO, client, make
from tests.component.api.fake_service import playing

from ultrafast.core.errors import EngineFailedError, OverloadedError

CHAT = "/v1/chat/completions"


async def test_attainment_is_counted_by_tier_and_shown() -> None:
    setup = make({"busy": playing(OverloadedError("full")), "broken": playing(EngineFailedError("no"))})
    async with client(setup) as http:
        await http.post(CHAT, json={**HELLO, "service_tier": "priority"})
        await http.post(CHAT, json={**HELLO, "service_tier": "fast"}, headers={"x-slo-ttft-ms": "0.000001"})
        await http.post(CHAT, json={**HELLO, "model": "busy"})
        await http.post(CHAT, json={**HELLO, "model": "broken"})
        answer = (await http.get("/v1/slo")).json()
    tiers = {tier["id"]: tier for tier in answer["data"]}
    assert list(tiers) == ["ultrafast", "priority", "default", "flex"]
    assert tiers["priority"]["objectives"] == {"ttft_ms": 500, "tpot_ms": 50}
    for window in ("1m", "10m", "1h"):
        shown = tiers["priority"]["attainment"][window]
        assert (shown["num_met"], shown["num_missed"], shown["share"]) == (1, 1, 0.5)
        assert sum(shown["missed_by"].values()) == 1
        assert tiers["default"]["attainment"][window]["num_refused"] == 1
        assert tiers["default"]["attainment"][window]["missed_by"]["failed"] == 1
    assert tiers["flex"]["attainment"]["1h"]["share"] is None
    assert tiers["priority"]["measured_ms"]["ttft"].keys() == {"p50", "p90", "p99"}


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-slo-ttft-ms", "0"),
        ("x-slo-ttft-ms", "-5"),
        ("x-slo-ttft-ms", "nan"),
        ("x-slo-tpot-ms", "inf"),
        ("x-slo-tpot-ms", "fast"),
        ("x-queue-ttl-ms", ""),
        ("x-slo-strict", "yes"),
    ],
)
async def test_a_senseless_objective_is_refused_by_name(header: str, value: str) -> None:
    setup = make()
    async with client(setup) as http:
        answer = await http.post(CHAT, json=HELLO, headers={header: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == header


async def test_a_requests_own_objectives_reach_serving() -> None:
    setup = make()
    headers = {"x-slo-ttft-ms": "250", "x-slo-tpot-ms": "12.5", "x-slo-strict": "True", "x-queue-ttl-ms": "1000"}
    async with client(setup) as http:
        await http.post(CHAT, json=HELLO, headers=headers)
    slo = setup.service.calls[-1].options.slo
    assert (slo.ttft_s, slo.tpot_s, slo.is_strict, slo.queue_ttl_s) == (0.25, 0.0125, True, 1.0)
