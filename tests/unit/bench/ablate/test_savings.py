"""Savings, intervals and what is told of their limits, on times that are known."""

import math

import pytest
from tests.unit.bench.ablate.samples import FACTORS, MANY, ONE, ablation

from ultrafast.bench.ablate.checks import check
from ultrafast.bench.ablate.claims import claims
from ultrafast.bench.ablate.savings import saved_mean, saved_quantile, tables
from ultrafast.bench.records import LoopLag, Outcome


def row(name, **options):
    return tables(ablation(**options))[0].row(name)


@pytest.mark.parametrize("name", [name for name in FACTORS if name != "naive"])
def test_savings_are_those_of_the_factors(name):
    saved = row(name).saved["e2e"]
    assert saved.share == pytest.approx(1 - FACTORS[name], abs=0.03)
    assert saved.low < 1 - FACTORS[name] < saved.high
    assert saved.is_certain == (FACTORS[name] != 1)


def test_streaming_saves_first_text_only():
    saved = row("streaming").saved
    assert saved["ttft_p95"].share == pytest.approx(0.5, abs=0.03)
    assert saved["ttft_p95"].low < 0.5 < saved["ttft_p95"].high
    assert abs(saved["e2e_p50"].share) < 0.05


def test_what_it_adds_to_its_base():
    levels = row("kv-levels")
    assert levels.base == "prefix-reuse"
    assert levels.added.share == pytest.approx(1 - 0.4 / 0.5, abs=0.03)
    assert row("prefix-reuse").base is None
    assert tables(ablation("kv-levels"))[0].row("kv-levels").added is None  # its base was not measured


def test_the_naive_row():
    naive = row("naive")
    assert naive.saved == {}
    assert (naive.num_ok, naive.num_failed) == (36, 0)
    assert naive.num_prompt_tokens == 3600
    assert row("together").num_cached_tokens == 80 * 24


def test_percentiles_pool_all_requests():
    naive = row("naive", noise=0)
    values = sorted(1 + 0.1 * r + 0.2 * c + 0.3 * t for r in range(6) for c in range(2) for t in range(3))
    assert naive.e2e[0].value_s == pytest.approx(values[17])
    assert [p.is_largest for p in naive.e2e] == [False, False, True]  # 36 requests
    assert naive.e2e[0].low_s < naive.e2e[0].value_s < naive.e2e[0].high_s
    assert naive.e2e[1].low_s is None
    assert naive.e2e[2].value_s == pytest.approx(values[-1])


def test_few_rounds_have_no_interval_for_the_mean_and_few_conversations_none_for_percentiles():
    few = row("together", num_rounds=4)
    assert few.saved["e2e"].share == pytest.approx(0.9, abs=0.01)
    assert (few.saved["e2e"].low, few.saved["ttft_p95"].low) == (None, None)  # 8 conversations
    assert row("together", num_rounds=5).saved["ttft_p95"].low is not None
    assert row("together", num_rounds=1).saved["e2e"].share == pytest.approx(0.9, abs=0.01)


def fail_one(run):
    if run.pipeline == "together" and run.round_number == 0:
        run.requests[0].outcome = Outcome.FAILED


def test_failures_are_infinitely_slow():
    failed = row("together", change=fail_one)
    assert (failed.num_ok, failed.num_failed) == (35, 1)
    assert math.isinf(failed.mean_e2e_s)
    assert failed.saved["e2e"].share is None
    assert math.isinf(failed.e2e[2].value_s)
    assert failed.saved["e2e_p99"].share is None
    assert failed.saved["e2e_p50"].share == pytest.approx(0.9, abs=0.03)
    assert failed.saved["e2e_p50"].high is not None


def test_only_later_turns():
    made = ablation(noise=0)
    naive, fast = made.runs_of("naive", "turns"), made.runs_of("together", "turns")
    for run in fast:
        for request in run.requests:
            if request.turn == 0:
                request.chunks = [type(request.chunks[0])(10**12)] * 2
    assert saved_quantile(naive, fast, "e2e", 0.5, first_turn=1).share == pytest.approx(0.9)
    assert saved_quantile(naive, fast, "e2e", 0.95).share < 0
    assert saved_mean(naive, fast).share < 0


def test_claims():
    first, second = claims(ablation())
    assert (first.published, second.published) == (0.975, 0.77)
    assert first.measured.share == pytest.approx(0.9, abs=0.03)
    assert second.measured.share == pytest.approx(0.95, abs=0.03)
    assert second.condition == "with 4 clients instead of 100"
    assert claims(ablation("streaming")) == []
    assert [claim.published for claim in claims(ablation(workloads=(MANY,)))] == [0.77]


def flags(**options):
    made = ablation(**options)
    return check(made, tables(made))


def test_nothing_to_say_of_a_clean_ablation():
    assert flags() == []


def wrong(run):
    if run.pipeline == "streaming" and run.workload == "turns" and run.round_number == 0:
        first = run.requests[0]
        first.usage = type(first.usage)(300, 4, 7)


def late(run):
    if run.pipeline == "together":
        object.__setattr__(run, "loop_lag", LoopLag(0.0, 0.4, 0.5, 10))


def test_what_limits_the_figures_is_said():
    found = flags(change=wrong)
    assert any("streaming: the server reused 7 prompt tokens although reuse is off" in text for text in found)
    assert any("streaming: 3800 prompt tokens, 3600 in the naive pipeline" in text for text in found)
    assert any("all together: 1 requests failed" in text for text in flags(change=fail_one))
    assert any("all together: the client itself was up to 400 ms late" in text for text in flags(change=late))
    assert flags(num_rounds=3) == ["fewer than 5 rounds: there is no interval for the mean E2E"]


def test_workloads_are_tables():
    assert [table.title for table in tables(ablation())] == [ONE.title, MANY.title]
    assert tables(ablation())[0].row("segments") is None
