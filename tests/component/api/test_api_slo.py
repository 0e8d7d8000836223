"""`/v1/slo` and the headers with a request's own objectives, through the application."""

from __future__ import annotations

import json

import pytest
from tests.component.api.edge import HELLO, client, make
from tests.component.api.fake_service import playing

from ultrafast.api.auth import ApiKeys, tenant_of
from ultrafast.core.errors import (
    EngineFailedError,
    InvalidRequestError,
    OverloadedError,
    SupersededError,
    UltrafastError,
    UnavailableError,
)
from ultrafast.core.tiers import ServiceTier
from ultrafast.observe.slo import MissReason
from ultrafast.serving.contract import ChoiceFinished, Completed, Delta, Started, Timings, Usage

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
    assert tiers["priority"]["objectives"] == {"ttft_ms": 500, "tpot_ms": 75, "e2e_ms": None, "jitter_ms": None}
    assert tiers["priority"]["arrivals_per_s"] == round(2 / 60, 3)
    for window in ("1m", "10m", "1h"):
        shown = tiers["priority"]["attainment"][window]
        assert (shown["num_met"], shown["num_missed"], shown["share"]) == (1, 1, 0.5)
        assert sum(shown["missed_by"].values()) == 1
        assert tiers["default"]["attainment"][window]["num_refused"] == 1
        assert tiers["default"]["attainment"][window]["missed_by"]["failed"] == 1
    assert tiers["flex"]["attainment"]["1h"]["share"] is None
    assert setup.sample("ultrafast_slo_met_total", tier="priority") == 1
    assert setup.sample("ultrafast_slo_missed_total", tier="default", reason="failed") == 1
    missed = [setup.sample("ultrafast_slo_missed_total", tier="priority", reason=reason) for reason in MissReason]
    assert sum(missed) == 1
    assert tiers["priority"]["measured_ms"]["ttft"].keys() == {"p50", "p90", "p99"}
    assert tiers["priority"]["measured_ms"].keys() == {"ttft", "tpot", "e2e", "jitter"}


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-slo-ttft-ms", "0"),
        ("x-slo-ttft-ms", "-5"),
        ("x-slo-ttft-ms", "nan"),
        ("x-slo-ttft-ms", "1_0"),
        ("x-slo-ttft-ms", "inf"),
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
    headers = {"x-slo-ttft-ms": "250", "x-slo-tpot-ms": "12.5", "x-slo-strict": "true", "x-queue-ttl-ms": "1000"}
    async with client(setup) as http:
        await http.post(CHAT, json=HELLO, headers=headers)
    slo = setup.service.calls[-1].options.slo
    assert (slo.ttft_s, slo.tpot_s, slo.is_strict, slo.queue_ttl_s) == (0.25, 0.0125, True, 1.0)


@pytest.mark.parametrize(
    ("count", "is_retry"), [("1", True), ("12", True), ("0", False), ("", False), ("-1", False), ("one", False)]
)
async def test_a_client_that_counts_its_retries_is_known_to_come_back(count: str, is_retry: bool) -> None:
    setup = make()
    async with client(setup) as http:
        await http.post(CHAT, json=HELLO, headers={"x-stainless-retry-count": count})
    assert setup.service.calls[-1].options.slo.is_retry is is_retry


async def test_a_served_tier_that_is_not_the_requested_one_stands_in_body_chunks_and_headers() -> None:
    events = [
        Started(ServiceTier.FLEX, "slo_at_risk", 7, 3, 0.0, 0.0),
        Delta(0, "a", num_tokens=1),
        ChoiceFinished(0, "stop"),
        Completed(Usage(7, 1, 3), Timings(0.0, 0.0, 0.0, 0.0)),
    ]
    setup = make({"m": playing(*events)})
    async with client(setup) as http:
        whole = await http.post(CHAT, json={**HELLO, "service_tier": "priority"})
        stream = await http.post(CHAT, json={**HELLO, "service_tier": "priority", "stream": True})
    chunks = [json.loads(line[6:]) for line in stream.text.split("\n\n") if line.startswith("data: {")]
    for said in [whole.json(), *chunks]:
        assert (said["service_tier"], said["service_tier_reason"]) == ("flex", "slo_at_risk")
    for answer in (whole, stream):
        assert answer.headers["x-ultrafast-tier-requested"] == "priority"
        assert answer.headers["x-ultrafast-tier-served"] == "flex"
        assert answer.headers["x-ultrafast-tier-reason"] == "slo_at_risk"


def _dropped(error: UltrafastError, reason: str) -> UltrafastError:
    error.drop_reason = reason
    return error


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (_dropped(OverloadedError("full", retry_after_s=2.25), "queue_full"), 429, "queue_full"),
        (_dropped(OverloadedError("late", code="queue_timeout"), "queue_timeout"), 429, "queue_timeout"),
        (_dropped(InvalidRequestError("never", code="sla_unavailable"), "slo_unreachable"), 422, "slo_unreachable"),
        (SupersededError("newer"), 409, None),
        (UnavailableError("no"), 503, "no_capacity"),
    ],
)
async def test_a_refusal_is_a_status_before_anything_is_sent(
    error: UltrafastError, status: int, reason: str | None, is_stream: bool
) -> None:
    setup = make({"m": playing(error)})
    async with client(setup) as http:
        answer = await http.post(CHAT, json={**HELLO, "stream": is_stream})
    assert answer.status_code == status
    assert answer.headers.get("x-ultrafast-drop-reason") == reason
    assert ("retry-after" in answer.headers) == (status in (429, 503))
    assert (answer.headers.get("x-should-retry") == "false") == (status == 409)
    if reason == "queue_full":
        assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("3", "2250")
        assert answer.json()["error"]["estimated_recovery_ms"] == 2250


async def test_a_supersede_key_belongs_to_an_api_key_whatever_that_is_called() -> None:
    setup = make(keys=ApiKeys((("team", "key-of-alice"), ("team", "key-of-bob"))))
    async with client(setup) as http:
        for key in ("key-of-alice", "key-of-bob"):
            headers = {"authorization": f"Bearer {key}", "x-supersede-key": "editor"}
            await http.post(CHAT, json=HELLO, headers=headers)
        refused = await http.post(CHAT, json=HELLO, headers={**headers, "x-supersede-key": "k" * 300})
    keys = [call.options.supersede_key for call in setup.service.calls]
    assert keys == [(tenant_of("key-of-alice"), "editor"), (tenant_of("key-of-bob"), "editor")]
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "x-supersede-key")
