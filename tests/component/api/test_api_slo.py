"""`/v1/slo` and the headers with a request's own objectives, through the application."""

from __future__ import annotations

import json

import pytest
from tests.component.api.edge import HELLO, client, make
from tests.component.api.fake_service import playing

from ultrafast.api.auth import ApiKeys, tenant_of
from ultrafast.config.tier_settings import TiersSettings
from ultrafast.core.errors import (
    ContextLengthError,
    EngineFailedError,
    InvalidRequestError,
    OverloadedError,
    SupersededError,
    UltrafastError,
    UnavailableError,
)
from ultrafast.core.tiers import ServiceTier
from ultrafast.observe.slo import MissReason
from ultrafast.serving.contract import ChoiceFinished, Completed, Delta, ServingEvent, Started, Timings, Usage

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


async def test_each_percentile_is_shown_beside_its_objective() -> None:
    percentiles = ("ttft:p50<=0.000001ms", "ttft:p90<=60s", "tpot:p99<=70 ms", "jitter:p90<=5ms")
    setup = make(tiers=TiersSettings.model_validate({"priority": {"percentiles": percentiles, "e2e_ms": 90_000}}))
    async with client(setup) as http:
        await http.post(CHAT, json={**HELLO, "service_tier": "priority"})
        answer = (await http.get("/v1/slo")).json()
    shown = {tier["id"]: tier["percentiles_ms"] for tier in answer["data"]}
    assert shown["priority"].keys() == {"ttft", "tpot", "e2e", "jitter"}
    ttft = shown["priority"]["ttft"]
    assert {name: (one["objective"], one["is_met"]) for name, one in ttft.items()} == {
        "p50": (0.000001, False),
        "p90": (60_000, True),
        "p99": (500, True),  # what is promised to each request
    }
    assert all(one["measured"] > 0 for one in ttft.values())
    assert shown["priority"]["tpot"]["p99"]["objective"] == 70
    assert (shown["priority"]["e2e"]["p99"]["objective"], shown["priority"]["e2e"]["p99"]["is_met"]) == (90_000, True)
    assert shown["priority"]["jitter"]["p90"] == {"objective": 5, "measured": None, "is_met": None}
    assert shown["flex"]["ttft"]["p50"] == {"objective": None, "measured": None, "is_met": None}


def _served_in_flex() -> list[ServingEvent | Exception]:
    return [
        Started(ServiceTier.FLEX, "slo_at_risk", 7, 3, 0.0, 0.0),
        Delta(0, "a", num_tokens=1),
        ChoiceFinished(0, "stop"),
        Completed(Usage(7, 1, 3), Timings(0.0, 0.0, 0.0, 0.0)),
    ]


async def test_a_tier_cannot_win_by_downgrading() -> None:
    """The call takes longer than `priority` promises and is well within what `flex` does."""
    tiers = TiersSettings.model_validate({"priority": {"ttft_ms": 0.000001, "is_downgradable": True}})
    setup = make({"m": playing(*_served_in_flex())}, tiers=tiers)
    async with client(setup) as http:
        await http.post(CHAT, json={**HELLO, "service_tier": "priority"})
        answer = (await http.get("/v1/slo")).json()
    hours = {tier["id"]: tier["attainment"]["1h"] for tier in answer["data"]}
    assert (hours["priority"]["num_missed"], hours["priority"]["num_met"], hours["priority"]["num_downgraded"]) == (1, 0, 1)
    assert (hours["flex"]["num_missed"], hours["flex"]["num_met"], hours["flex"]["num_downgraded"]) == (0, 0, 0)
    assert setup.sample("ultrafast_slo_met_total", tier="flex") == 0


async def test_what_the_client_did_wrong_is_no_refusal() -> None:
    refused = InvalidRequestError("never", code="sla_unavailable")
    refused.drop_reason = "slo_unreachable"
    setup = make({"long": playing(ContextLengthError("too long")), "strict": playing(refused)})
    async with client(setup) as http:
        statuses = [
            (await http.post(CHAT, json={**HELLO, "model": model})).status_code for model in ("long", "unknown", "strict")
        ]
        answer = (await http.get("/v1/slo")).json()
    assert statuses == [400, 404, 422]
    hour = next(tier for tier in answer["data"] if tier["id"] == "default")["attainment"]["1h"]
    assert (hour["num_refused"], hour["num_missed"]) == (1, 0), "only the one that could have been served elsewhere"
    assert setup.sample("ultrafast_requests_total", tier="default", outcome="invalid") == 2
    assert setup.sample("ultrafast_requests_total", tier="default", outcome="rejected") == 1


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
        ("x-execution-ttl-ms", "0"),
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
    headers["x-execution-ttl-ms"] = "2500"
    async with client(setup) as http:
        await http.post(CHAT, json=HELLO, headers=headers)
    slo = setup.service.calls[-1].options.slo
    assert (slo.ttft_s, slo.tpot_s, slo.is_strict, slo.queue_ttl_s, slo.execution_ttl_s) == (0.25, 0.0125, True, 1.0, 2.5)


@pytest.mark.parametrize("texts", [(), ("a",)])
async def test_an_answer_that_was_cut_by_time_says_so_and_counts_as_missed(texts: tuple[str, ...]) -> None:
    started = Started(ServiceTier.DEFAULT, "default", 7, 3, 0.0, 0.0)
    timings = Timings(queue_s=0.0, compute_s=500.0, prefill_s=400.0, ttft_s=400.0, decode_s=(100.0,))
    deltas = [Delta(0, text, num_tokens=1) for text in texts]
    end = Completed(Usage(7, len(texts), 3), timings, is_timed_out=True)
    setup = make({"m": playing(started, *deltas, ChoiceFinished(0, "length", "execution_timeout"), end)})
    async with client(setup) as http:
        whole = (await http.post(CHAT, json=HELLO)).json()["choices"][0]
        stream = (await http.post(CHAT, json={**HELLO, "stream": True})).text
    assert (whole["finish_reason"], whole["stop_reason"]) == ("length", "execution_timeout")
    assert (whole["message"]["content"] or "") == "".join(texts)
    assert '"finish_reason":"length","stop_reason":"execution_timeout"' in stream
    assert stream.endswith("data: [DONE]\n\n")
    assert setup.sample("ultrafast_slo_missed_total", tier="default", reason="prefill") == 2


@pytest.mark.parametrize(
    ("count", "is_retry"), [("1", True), ("12", True), ("0", False), ("", False), ("-1", False), ("one", False)]
)
async def test_a_client_that_counts_its_retries_is_known_to_come_back(count: str, is_retry: bool) -> None:
    setup = make()
    async with client(setup) as http:
        await http.post(CHAT, json=HELLO, headers={"x-stainless-retry-count": count})
    assert setup.service.calls[-1].options.slo.is_retry is is_retry


async def test_a_served_tier_that_is_not_the_requested_one_stands_in_body_chunks_and_headers() -> None:
    setup = make({"m": playing(*_served_in_flex())})
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
