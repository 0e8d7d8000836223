"""Repeated comparisons of servers whose true difference is known, and every road to an outcome."""

import math

import numpy as np
import pytest
from tests.unit.bench.synthetic import request, run_of

from ultrafast.bench.compare.errors import compare_errors
from ultrafast.bench.compare.judge import Outcome, Rules, compare_figures
from ultrafast.bench.compare.metrics import Figure, Measured, parse_figure
from ultrafast.bench.records import Outcome as RequestOutcome
from ultrafast.core.errors import ConfigError

P50, P99, JITTER, GAP = Figure("ttft", 0.5), Figure("ttft", 0.99), Figure("jitter"), Figure("gap", 0.99)


def make_run(rng, median_s=0.1, *, num_requests=100, run_noise=0.01, gaps=0):
    """A run with its own luck (`run_noise`, relative), as runs on one machine have it."""
    luck = math.exp(rng.normal(0, run_noise))
    ttfts = rng.lognormal(math.log(median_s * luck), 0.1, num_requests)
    return run_of([request(index, ttft, luck * rng.lognormal(-4, 0.2, gaps)) for index, ttft in enumerate(ttfts)])


def sides(rng, factor, num_runs=6, **run):
    return [make_run(rng, 0.1, **run) for _ in range(num_runs)], [make_run(rng, 0.1 * factor, **run) for _ in range(num_runs)]


def outcomes(rng, factor, figure=P50, rules=None, **run):
    return compare_figures(*sides(rng, factor, **run), [figure], rules or Rules())[0]


def test_a_clear_regression_is_worse_and_equal_servers_are_the_same():
    rng = np.random.default_rng(1)
    worse = outcomes(rng, 1.2)
    assert (worse.outcome, worse.basis) == (Outcome.WORSE, "runs")
    assert worse.low <= 1.2 <= worse.high
    assert outcomes(rng, 1.0).outcome is Outcome.SAME
    better = outcomes(rng, 0.8)
    assert better.outcome is Outcome.BETTER
    assert better.ratio == pytest.approx(0.8, rel=0.05)


def test_wrong_worse_and_wrong_same_are_rare_right_at_the_margin():
    rng = np.random.default_rng(2)
    rules = Rules(is_paired=True)
    at_margin = [outcomes(rng, 1.05, rules=rules, num_requests=20, run_noise=0.02).outcome for _ in range(100)]
    assert at_margin.count(Outcome.WORSE) <= 7  # 2.5 % of 100 are expected
    assert at_margin.count(Outcome.SAME) + at_margin.count(Outcome.BETTER) <= 7


def exact_side(*ttfts_s):
    return [run_of([request(index, ttft_s) for index in range(10)]) for ttft_s in ttfts_s]


def test_a_permutation_alone_does_not_make_it_worse():
    """All pairs lie above the margin, so the sign flips agree; the spread is too large for Student's t."""
    a, b = exact_side(*[0.1] * 6), exact_side(*[0.1051] * 5, 0.111)
    found = compare_figures(a, b, [P50], Rules(is_paired=True))[0]
    assert found.p_check == pytest.approx(2 / 64)
    assert 0.025 < found.p_worse < 0.3
    assert found.outcome is Outcome.INCONCLUSIVE


def test_the_permutation_check_is_about_the_margin():
    a = exact_side(*[0.1] * 6)
    around = exact_side(0.104, 0.106, 0.103, 0.107, 0.1045, 0.1055)
    assert compare_figures(a, around, [P50], Rules(is_paired=True))[0].p_check > 0.5
    assert compare_figures(a, exact_side(*[0.12] * 6), [P50], Rules(is_paired=True))[0].p_check == pytest.approx(2 / 64)


def test_noise_is_inconclusive():
    rng = np.random.default_rng(3)
    noisy = outcomes(rng, 1.05, run_noise=0.15)
    assert noisy.outcome is Outcome.INCONCLUSIVE
    assert "margin of 5 %" in noisy.note


def test_more_throughput_is_better():
    def side(gap_s):
        return [run_of([request(i, 0.1, [gap_s] * 20, at_s=i * (0.1 + 20 * gap_s)) for i in range(20)]) for _ in range(5)]

    slower = compare_figures(side(0.01), side(0.02), [Figure("throughput")], Rules())[0]
    assert slower.outcome is Outcome.WORSE
    assert slower.ratio < 0.8
    assert compare_figures(side(0.02), side(0.01), [Figure("throughput")], Rules())[0].outcome is Outcome.BETTER


def test_jitter_and_gaps_by_run_and_within_one_run():
    rng = np.random.default_rng(5)

    def side(spread, num_runs):
        return [run_of([request(i, 0.1, rng.normal(0.05, spread, 20)) for i in range(120)]) for _ in range(num_runs)]

    figures = [JITTER, GAP]
    found = compare_figures(side(0.005, 5), side(0.008, 5), figures, Rules())
    assert [each.outcome for each in found] == [Outcome.WORSE, Outcome.WORSE]
    few = compare_figures(side(0.005, 1), side(0.008, 1), figures, Rules())
    assert [each.outcome for each in few] == [Outcome.INCONCLUSIVE] * 2
    assert all("1 of 5 runs" in each.note and each.low > 1.05 for each in few)
    accepted = compare_figures(side(0.005, 1), side(0.008, 1), figures, Rules(min_runs=1))
    assert [(each.outcome, each.basis) for each in accepted] == [(Outcome.WORSE, "within one run")] * 2


def test_within_one_run_intervals_cover(monkeypatch):
    monkeypatch.setattr("ultrafast.bench.compare.judge.NUM_RESAMPLES", 400)
    rng = np.random.default_rng(6)
    found = [outcomes(rng, 1.1, num_runs=1, run_noise=0.0, num_requests=150) for _ in range(25)]
    assert sum(each.low <= 1.1 <= each.high for each in found) >= 21


def test_pairs_cancel_drift():
    rng = np.random.default_rng(7)
    drift = np.linspace(1, 1.5, 6)
    a = [make_run(rng, 0.1 * factor, run_noise=0.002) for factor in drift]
    b = [make_run(rng, 0.1 * factor * 1.15, run_noise=0.002) for factor in drift]
    assert compare_figures(a, b, [P50], Rules())[0].outcome is Outcome.INCONCLUSIVE
    assert compare_figures(a, b, [P50], Rules(is_paired=True))[0].outcome is Outcome.WORSE


def test_holm_makes_worse_harder_with_more_figures():
    rng = np.random.default_rng(8)
    a, b = sides(rng, 1.1, run_noise=0.03)
    alone = compare_figures(a, b, [P50], Rules())[0]
    among = compare_figures(a, b, [P50, P99, Figure("ttft", 0.9), Figure("ttft", 0.95), Figure("e2e", 0.5)], Rules())[0]
    assert alone.p_worse < among.p_worse


def test_what_has_no_logarithm_is_inconclusive():
    failing = [run_of([request(i, None if i < 5 else 0.1, outcome=_failed(i < 5)) for i in range(100)]) for _ in range(5)]
    fine = [run_of([request(i, 0.1) for i in range(100)]) for _ in range(5)]
    found = compare_figures(fine, failing, [P99, P50, GAP, JITTER], Rules())
    assert [each.outcome for each in found] == [Outcome.INCONCLUSIVE, Outcome.SAME, Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE]
    assert "failed requests" in found[0].note
    assert "100 samples" in found[2].note


def _failed(is_failed):
    return RequestOutcome.FAILED if is_failed else RequestOutcome.OK


def test_a_percentile_needs_its_samples():
    assert Measured(run_of([request(i, 0.1) for i in range(99)])).figure(P99) is None
    assert Measured(run_of([request(i, 0.1) for i in range(100)])).figure(P99) == pytest.approx(0.1)


def test_errors():
    def side(num_failed, num_requests=500):
        return [
            run_of([request(i, None if i < num_failed else 0.1, outcome=_failed(i < num_failed)) for i in range(num_requests)])
        ]

    assert compare_errors(side(0), side(20)).outcome is Outcome.WORSE
    assert compare_errors(side(20), side(0)).outcome is Outcome.BETTER
    assert compare_errors(side(0), side(0)).outcome is Outcome.SAME
    assert compare_errors(side(0), side(2)).outcome is Outcome.INCONCLUSIVE
    assert compare_errors(side(2, 5000), side(2, 5000)).outcome is Outcome.SAME


@pytest.mark.parametrize("text", ["ttft:p99", "gap:p50", "jitter", "throughput", "requests", "jitter:p95", "e2e:p99.9"])
def test_figures_as_written(text):
    figure = parse_figure(text)
    assert figure.name.replace(" ", ":") == text


@pytest.mark.parametrize("text", ["", "ttft", "ttft:p0", "ttft:p100", "speed:p50", "throughput:p50"])
def test_no_such_figure(text):
    with pytest.raises(ConfigError) as caught:
        parse_figure(text)
    assert caught.value.hint
