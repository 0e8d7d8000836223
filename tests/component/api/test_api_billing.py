"""Prices, downgrades and the conditions of objectives, through the application."""

from __future__ import annotations

import json

import pytest
from tests.component.api.edge import HELLO, client, make
from tests.component.api.fake_service import playing, speaking

from ultrafast.config.tier_settings import TiersSettings
from ultrafast.core.errors import EngineFailedError
from ultrafast.core.tiers import ServiceTier
from ultrafast.serving.contract import ChoiceFinished, Completed, Delta, ServingEvent, Started, Timings, Usage

CHAT = "/v1/chat/completions"
PRICES = {
    "currency": "EUR",
    "ultrafast": {"price_input": 100, "price_cached_input": 10, "price_output": 1000},
    "flex": {"price_input": 1, "price_cached_input": 0.1, "price_output": 10},
}
FLEX_COST = (4 * 1 + 3 * 0.1 + 1 * 10) / 1e6


def _tiers(**changes: object) -> TiersSettings:
    return TiersSettings.model_validate({**PRICES, **changes})


def _downgraded() -> list[ServingEvent | Exception]:
    return [
        Started(ServiceTier.FLEX, "slo_at_risk", 7, 3, 0.0, 0.0),
        Delta(0, "a", num_tokens=1),
        ChoiceFinished(0, "stop"),
        Completed(Usage(7, 1, 3), Timings(0.0, 0.0, 0.0, 0.0)),
    ]


async def test_a_call_costs_what_the_tier_costs_that_served_it() -> None:
    setup = make({"m": playing(*_downgraded())}, tiers=_tiers())
    body = {**HELLO, "service_tier": "ultrafast"}
    async with client(setup) as http:
        whole = await http.post(CHAT, json=body)
        stream = await http.post(CHAT, json={**body, "stream": True, "stream_options": {"include_usage": True}})
    last = [json.loads(line[6:]) for line in stream.text.split("\n\n") if line.startswith("data: {")][-1]
    assert whole.json()["usage"]["cost"] == last["usage"]["cost"] == pytest.approx(FLEX_COST)
    assert float(whole.headers["x-ultrafast-cost"]) == pytest.approx(FLEX_COST)
    assert setup.sample("ultrafast_cost_total", tier="flex") == pytest.approx(2 * FLEX_COST)
    assert setup.sample("ultrafast_cost_total", tier="ultrafast") == 0


async def test_a_downgrade_is_counted_by_both_tiers_and_its_reason() -> None:
    setup = make({"m": playing(*_downgraded()), "kept": speaking("a")})
    async with client(setup) as http:
        await http.post(CHAT, json={**HELLO, "service_tier": "ultrafast"})
        await http.post(CHAT, json={**HELLO, "service_tier": "ultrafast", "model": "kept"})
    labels = {"requested": "ultrafast", "served": "flex", "reason": "slo_at_risk"}
    assert setup.sample("ultrafast_downgrades_total", **labels) == 1
    found = [metric.samples for metric in setup.metrics.registry.collect() if metric.name == "ultrafast_downgrades"]
    assert len(found[0]) == 1, "whoever is served as asked is in no series"


async def test_without_prices_nothing_is_said_of_cost() -> None:
    setup = make({"m": speaking("a")})
    async with client(setup) as http:
        answer = await http.post(CHAT, json=HELLO)
    assert "cost" not in answer.json()["usage"]
    assert "x-ultrafast-cost" not in answer.headers


async def test_what_fails_through_our_fault_costs_nothing() -> None:
    events = [*_downgraded()[:2], EngineFailedError("no")]
    setup = make({"m": playing(*events)}, tiers=_tiers())
    async with client(setup) as http:
        await http.post(CHAT, json={**HELLO, "stream": True})
    assert setup.sample("ultrafast_cost_total", tier="flex") == 0


async def test_slo_shows_order_price_and_conditions_and_counts_what_is_beyond_them_apart() -> None:
    conditions = {"max_output_tokens": 1, "max_arrivals_per_s": 0.04, "e2e_ms": 0.000001}
    tiers = _tiers(order=("priority", "ultrafast", "flex", "default"), ultrafast={**PRICES["ultrafast"], **conditions})
    setup = make({"one": speaking("a"), "two": speaking("a", "b")}, tiers=tiers)
    async with client(setup) as http:
        for model in ("one", "two", "one"):
            answer = await http.post(CHAT, json={**HELLO, "model": model, "service_tier": "ultrafast"})
            assert answer.status_code == 200
        shown = (await http.get("/v1/slo")).json()["data"]
    assert [(tier["id"], tier["order"]) for tier in shown] == [("priority", 0), ("ultrafast", 1), ("flex", 2), ("default", 3)]
    ultra = shown[1]
    assert ultra["price"] == {
        "currency": "EUR",
        "input_per_million": 100,
        "cached_input_per_million": 10,
        "output_per_million": 1000,
    }
    assert ultra["conditions"] == {"max_prompt_tokens": None, "max_output_tokens": 1, "max_arrivals_per_s": 0.04}
    minute = ultra["attainment"]["1m"]
    assert minute["num_missed"] == 1, "the first is within all conditions, and nobody answers within a nanosecond"
    assert minute["num_outside_conditions"] == 2, "two tokens; the third call of the minute"
