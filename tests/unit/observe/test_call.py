"""Samples of a call: what its client sees, counted once, with the objectives as bucket edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.core.tiers import ServiceTier
from ultrafast.observe.buckets import ITL_EDGES_S, TTFT_EDGES_S, with_objectives
from ultrafast.observe.call import FOLD_DELTAS, LatencyParts
from ultrafast.observe.metrics import Metrics, Outcome
from ultrafast.observe.recorder import Recorder

seconds = st.floats(0, 1e6)


@given(seconds, st.floats(-1, 1e6), st.floats(-1, 1e6), st.floats(-1, 1e6))
def test_parts_are_never_negative_and_sum_to_the_total(total: float, network: float, queue: float, compute: float) -> None:
    parts = LatencyParts.divide(total, network_s=network, queue_s=queue, compute_s=compute)
    values = [parts.network_s, parts.queue_s, parts.compute_s, parts.output_s]
    assert min(values) >= 0
    assert sum(values) == pytest.approx(total)


def test_a_slow_reader_does_not_eat_the_engines_part() -> None:
    parts = LatencyParts.divide(10, network_s=9.5, queue_s=0, compute_s=1)
    assert (parts.network_s, parts.compute_s, parts.output_s) == (9, 1, 0)


def test_objectives_become_edges_once() -> None:
    edges = with_objectives(TTFT_EDGES_S, [0.2, 0.123])
    assert list(edges) == sorted(set(edges))
    assert set(edges) == {*map(float, TTFT_EDGES_S), 0.123}
    metrics = Metrics([0.123], [0.0077])
    metrics.ttft.labels("flex").observe(0.123)
    value = metrics.registry.get_sample_value
    assert value("ultrafast_ttft_seconds_bucket", {"tier": "flex", "le": "0.123"}) == 1
    assert value("ultrafast_ttft_seconds_bucket", {"tier": "flex", "le": "0.1"}) == 0
    metrics.itl.labels("flex").observe(0.0077)
    assert value("ultrafast_itl_seconds_bucket", {"tier": "flex", "le": "0.0077"}) == 1
    assert min(ITL_EDGES_S) == 0.0005


def test_samples_of_a_streamed_call() -> None:
    metrics = Metrics()
    call = Recorder(metrics).begin_call(10.0, ServiceTier.DEFAULT)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"ultrafast_{name}", labels)

    assert value("requests_in_flight") == 1
    call.serve_as(ServiceTier.FLEX)
    call.on_delta(0, 1, 10.5)
    call.on_delta(0, 1, 10.6)
    call.on_delta(0, 2, 10.8)
    call.on_delta(0, 1, 10.9)
    call.finish(Outcome.COMPLETED, 11.0, LatencyParts.divide(1.0, network_s=0.1, queue_s=0.2, compute_s=0.3))
    assert value("ttft_seconds_sum", tier="flex") == pytest.approx(0.5)
    assert value("itl_seconds_count", tier="flex") == 4
    assert value("itl_seconds_sum", tier="flex") == pytest.approx(0.4)
    assert value("tpot_seconds_sum", tier="flex") == pytest.approx(0.1)
    # Gaps 0.1, 0.2, 0.1: standard deviation of the three.
    assert value("jitter_seconds_sum", tier="flex") == pytest.approx(0.0471405, abs=1e-6)
    assert value("e2e_seconds_sum", tier="flex") == pytest.approx(1.0)
    assert value("latency_part_seconds_sum", tier="flex", part="output") == pytest.approx(0.4)
    assert value("output_tokens_total", tier="flex") == 5
    assert value("requests_total", tier="flex", outcome="completed") == 1
    assert value("requests_in_flight") == 0


def test_what_is_read_is_up_to_date_while_a_call_runs() -> None:
    metrics = Metrics()
    call = Recorder(metrics).begin_call(0.0, ServiceTier.DEFAULT)
    value = metrics.registry.get_sample_value
    num_deltas = 2 * FOLD_DELTAS + 3
    for number in range(num_deltas):
        call.on_delta(0, 1, float(number))
        assert len(call._notes) < FOLD_DELTAS
    for _ in range(2):
        assert value("ultrafast_itl_seconds_count", {"tier": "default"}) == num_deltas - 1
        assert value("ultrafast_output_tokens_total", {"tier": "default"}) == num_deltas
    assert call.num_tokens == num_deltas
    call.on_delta(0, 1, float(num_deltas))
    call.finish(Outcome.ABORTED, num_deltas)
    assert value("ultrafast_output_tokens_total", {"tier": "default"}) == num_deltas + 1


def test_tokens_count_for_the_tier_that_served_when_they_came() -> None:
    metrics = Metrics()
    call = Recorder(metrics).begin_call(0.0, ServiceTier.DEFAULT)
    call.on_delta(0, 1, 1.0)
    call.serve_as(ServiceTier.FLEX)
    call.on_delta(0, 2, 2.0)
    value = metrics.registry.get_sample_value
    assert [value("ultrafast_output_tokens_total", {"tier": tier}) for tier in ("default", "flex")] == [1, 2]


def test_two_choices_have_gaps_of_their_own() -> None:
    metrics = Metrics()
    call = Recorder(metrics).begin_call(0.0, ServiceTier.DEFAULT)
    for now in (1.0, 2.0):
        call.on_delta(0, 1, now)
        call.on_delta(1, 1, now + 0.5)
    call.finish(Outcome.COMPLETED, 3.0)
    value = metrics.registry.get_sample_value
    assert value("ultrafast_itl_seconds_sum", {"tier": "default"}) == 2.0
    assert value("ultrafast_ttft_seconds_count", {"tier": "default"}) == 1
    assert value("ultrafast_tpot_seconds_count", {"tier": "default"}) == 2
    assert value("ultrafast_jitter_seconds_count", {"tier": "default"}) == 0


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.COMPLETED])
def test_what_did_not_complete_has_no_durations(outcome: Outcome) -> None:
    metrics = Metrics()
    call = Recorder(metrics).begin_call(0.0, ServiceTier.DEFAULT)
    call.on_delta(0, 1, 1.0)
    call.on_delta(0, 1, 2.0)
    call.finish(outcome, 3.0)
    value = metrics.registry.get_sample_value
    assert value("ultrafast_e2e_seconds_count", {"tier": "default"}) == 0
    assert value("ultrafast_tpot_seconds_count", {"tier": "default"}) == 0
    assert value("ultrafast_requests_total", {"tier": "default", "outcome": outcome}) == 1
    with pytest.raises(AssertionError, match="ends once"):
        call.finish(outcome, 3.0)
