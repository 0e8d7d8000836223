"""Repeated gates on a server whose true P99 is known, and every road to a verdict."""

import itertools
import math

import numpy as np
import pytest
from tests.unit.bench.synthetic import lognormal_requests, request, run_of, true_p99

from ultrafast.bench.gate.evaluate import evaluate
from ultrafast.bench.gate.judge import Mode, Rules, judge
from ultrafast.bench.gate.prechecks import Limits
from ultrafast.bench.gate.samples import Sampled
from ultrafast.bench.gate.targets import make_target, parse_target
from ultrafast.bench.gate.verdicts import EXIT_CODES, Verdict
from ultrafast.bench.gate.watch import FIRST_LOOK, LOOK_GROWTH, Watch, num_looks
from ultrafast.bench.records import Flag, FlagLevel, Outcome

NUM_REPEATS = 200


def gate_once(ttfts_s, limit_s):
    """What `Watch` does with requests that come one by one, without making a record of each."""
    target = parse_target(f"ttft:p99<={limit_s * 1e3}ms")
    values = list(np.reshape(ttfts_s, (-1, 1)))
    size, look = FIRST_LOOK, 1
    while size <= len(values):
        rules = Rules(mode=Mode.SEQUENTIAL, look=look, has_bounds=False)
        verdict = judge(target, Sampled(values[:size]), rules).verdict
        if verdict is not Verdict.INCONCLUSIVE:
            return verdict, size
        size, look = int(size * LOOK_GROWTH), look + 1
    return Verdict.INCONCLUSIVE, len(values)


def verdicts(median_s, limit_s, seed, num_repeats=NUM_REPEATS, num_requests=1000):
    rng = np.random.default_rng(seed)
    return [gate_once(rng.lognormal(math.log(median_s), 0.3, num_requests), limit_s) for _ in range(num_repeats)]


def share(found, verdict):
    return sum(each is verdict for each, _ in found) / len(found)


def test_wrong_pass_is_rare_on_a_server_just_above_its_target():
    assert share(verdicts(0.1, true_p99(0.1) * 0.995, seed=1), Verdict.PASS) <= 0.05


def test_wrong_fail_is_rare_on_a_server_right_at_its_target():
    found = verdicts(0.1, true_p99(0.1), seed=2)
    assert share(found, Verdict.FAIL) <= 0.05
    assert not any(one is two is Verdict.FAIL for (one, _), (two, _) in itertools.pairwise(found))


def test_an_unchanged_server_with_headroom_passes_and_a_regression_of_a_fifth_is_caught():
    limit_s = true_p99(0.1)
    healthy = verdicts(0.1 / 1.2, limit_s, seed=3, num_repeats=20, num_requests=2500)
    assert share(healthy, Verdict.PASS) >= 0.9
    assert share(healthy, Verdict.FAIL) == 0
    regressed = verdicts(0.1 * 1.2, limit_s, seed=4, num_repeats=40)
    assert share(regressed, Verdict.FAIL) >= 0.95
    assert np.median([size for _, size in regressed]) < 400


def test_an_unchanged_noisy_server_never_fails_twice_in_a_row():
    """Load bursts: one request in 40 begins a stretch of 8 that is half as slow again; the target is the true P99 of it all."""
    rng = np.random.default_rng(5)

    def noisy(num_requests):
        values = rng.lognormal(math.log(0.1), 0.2, num_requests)
        for start in np.flatnonzero(rng.random(num_requests) < 1 / 40):
            values[start : start + 8] *= 1.5
        return values

    limit_s = float(np.quantile(noisy(200_000), 0.99))
    found = [gate_once(noisy(1000), limit_s)[0] for _ in range(60)]
    assert sum(verdict is Verdict.FAIL for verdict in found) <= 3
    slower = [gate_once(noisy(1000), limit_s * 0.995)[0] for _ in range(60)]
    assert sum(verdict is Verdict.PASS for verdict in slower) <= 3
    assert not any(one is two is Verdict.FAIL for one, two in itertools.pairwise(found))


def test_bursts_far_below_the_limit_cost_nothing():
    rng = np.random.default_rng(12)
    values = rng.lognormal(math.log(0.1), 0.1, 400)
    for start in range(0, 400, 40):
        values[start : start + 8] *= 1.3
    assert gate_once(values, 1.0) == (Verdict.PASS, gate_once(np.full(400, 0.1), 1.0)[1])
    assert gate_once(values, float(values.max()) * 1.01)[0] is Verdict.INCONCLUSIVE


def evaluated(requests, *targets, rules=None, limits=None, **run):
    return evaluate(
        run_of(requests, **run), [parse_target(text) for text in targets], rules or Rules(), limits or Limits(), source="t"
    )


def test_exit_codes():
    assert [EXIT_CODES[verdict] for verdict in ("pass", "fail", "inconclusive", "error")] == [0, 1, 2, 3]


@pytest.mark.parametrize(("size", "verdict"), [(298, "inconclusive"), (299, "pass")])
def test_a_saved_run_without_violation(size, verdict):
    report = evaluated([request(index, 0.1) for index in range(size)], "ttft:p99<=300ms")
    assert report.verdict == verdict
    assert "\n" not in report.reason


def test_a_clear_miss_and_its_bound():
    rng = np.random.default_rng(1)
    report = evaluated(lognormal_requests(rng, 500, 0.3), "ttft:p99<=300ms")
    result = report.targets[0]
    assert (report.verdict, report.exit_code) == ("fail", 1)
    assert 0.3 <= result.low < result.observed
    assert result.low <= true_p99(0.3) <= result.high
    assert "ttft p99 <= 300 ms" in report.reason


def test_bounds_of_saved_runs_cover_the_truth():
    rng = np.random.default_rng(6)
    results = [evaluated(lognormal_requests(rng, 400, 0.1), "ttft:p95<=150ms").targets[0] for _ in range(40)]
    truth = 0.1 * math.exp(1.6448536 * 0.3)
    assert sum(result.low is not None and result.low > truth for result in results) <= 5
    assert sum(result.high is not None and result.high < truth for result in results) <= 5
    assert all(result.high is not None for result in results)


def test_few_requests_prove_nothing():
    report = evaluated([request(index, 9.0) for index in range(29)], "ttft:p50<=300ms")
    assert report.verdict == "inconclusive"
    assert "too few" in report.reason


def test_failures_count_as_infinite_and_many_of_them_fail():
    requests = [request(index, None if index % 10 == 0 else 0.1, outcome=_failed(index % 10 == 0)) for index in range(400)]
    report = evaluated(requests, "ttft:p95<=300ms")
    assert report.targets[0].observed == math.inf
    assert report.verdict == "fail"
    assert "40 of 400 requests failed" in report.reason
    assert "HTTP 500" in report.reason


def test_a_few_errors_too_many_are_inconclusive():
    requests = [request(index, None if index in (5, 100) else 0.1, outcome=_failed(index in (5, 100))) for index in range(150)]
    report = evaluated(requests, "ttft:p50<=300ms")
    assert report.targets[0].verdict == "pass"
    assert report.verdict == "inconclusive"
    assert evaluated(requests, "ttft:p50<=300ms", limits=Limits(max_error_share=0.02)).verdict == "pass"


def _failed(is_failed):
    return Outcome.FAILED if is_failed else Outcome.OK


def test_nothing_got_through_is_an_error():
    report = evaluated([request(index, None, outcome=Outcome.FAILED) for index in range(400)], "ttft:p99<=300ms")
    assert (report.verdict, report.exit_code) == ("error", 3)
    assert "HTTP 500" in report.reason
    assert evaluated([], "ttft:p99<=300ms").verdict == "error"


GOOD = [request(index, 0.1, [0.01, 0.03] * 4) for index in range(500)]


def late(requests, factor):
    copies = [request(index, 0.1) for index in range(len(requests))]
    for record in copies:
        record.sent_ns = round(record.scheduled_ns * factor)
    return copies


@pytest.mark.parametrize(
    ("requests", "run", "code"),
    [
        (GOOD, {"loop_lag_s": 0.031}, "loop_lag"),
        (late(GOOD, 1.05), {"rate_per_s": 100.0}, "late_dispatch"),
        ([request(index, 0.1, prompt=105) for index in range(500)], {}, "prompt_length"),
        ([request(index, 0.1, [0.02] * 10, output=8) for index in range(500)], {}, "output_length"),
        (GOOD, {"flags": [Flag("conservation", FlagLevel.INVALID, "one is missing")]}, "conservation"),
        (GOOD, {"flags": [Flag("buffered", FlagLevel.UNRELIABLE, "a burst", ("ttft",))]}, "buffered"),
    ],
)
def test_prechecks_force_inconclusive(requests, run, code):
    report = evaluated(requests, "ttft:p99<=300ms", **run)
    assert report.targets[0].verdict == "pass"
    assert (report.verdict, [check.code for check in report.prechecks]) == ("inconclusive", [code])
    failing = evaluated(requests, "ttft:p99<=50ms", **{**run, "loop_lag_s": run.get("loop_lag_s", 0.0)})
    assert failing.verdict == "inconclusive"
    accepted = evaluated(requests, "ttft:p99<=300ms", limits=Limits(accepted=frozenset({code})), **run)
    assert accepted.verdict == "pass"


def test_an_unreliable_metric_blocks_only_itself():
    flags = [Flag("coalesced", FlagLevel.UNRELIABLE, "chunks come together", ("itl", "jitter"))]
    assert evaluated(GOOD, "ttft:p99<=300ms", flags=flags).verdict == "pass"
    report = evaluated(GOOD, "ttft:p99<=300ms", "jitter<=20ms", flags=flags)
    assert report.verdict == "inconclusive"
    assert "chunks come together" in report.reason
    assert evaluated(GOOD, "ttft:p99<=50ms", "jitter<=20ms", flags=flags).verdict == "fail"


def test_jitter():
    assert evaluated(GOOD, "jitter<=11ms").verdict == "pass"
    report = evaluated(GOOD, "jitter<=9ms")
    assert report.verdict == "fail"
    assert report.targets[0].observed == pytest.approx(0.01)
    assert evaluated(GOOD, "itl:p99<=31ms", "max_gap:p99<=31ms", "jitter:p95<=11ms").verdict == "pass"
    assert evaluated(GOOD, "itl:p99<=29ms").verdict == "fail"
    assert evaluated([request(index, 0.1) for index in range(500)], "jitter<=9ms").verdict == "inconclusive"


def test_jitter_error_rate_with_looks():
    """Half of the requests jitter by 15 ms, half by 5: the pooled deviation is known; looking on never proves the wrong thing."""
    rng = np.random.default_rng(8)
    truth_s = math.sqrt((0.015**2 + 0.005**2) / 2 * 19 / 20)
    target = parse_target("jitter<=1s")
    wrong = {Verdict.PASS: 0, Verdict.FAIL: 0}
    for _ in range(60):
        gaps = [rng.normal(0.05, scale, 20) for scale in rng.choice([0.015, 0.005], 250)]
        for verdict, limit_s in ((Verdict.PASS, truth_s * 0.999), (Verdict.FAIL, truth_s)):
            exact = make_target(target.metric, None, limit_s)
            looks = enumerate((50, 80, 125, 250), start=1)
            results = [judge(exact, Sampled(gaps[:size]), _sequential(look)) for look, size in looks]
            wrong[verdict] += any(result.verdict is verdict for result in results)
    assert max(wrong.values()) <= 4


def _sequential(look):
    return Rules(look=look, mode=Mode.SEQUENTIAL)


def test_all_must_pass_and_one_fails_all():
    assert evaluated(GOOD, "ttft:p99<=300ms", "e2e:p99<=1s", "errors<=1%").verdict == "pass"
    report = evaluated(GOOD, "ttft:p99<=300ms", "e2e:p99<=200ms")
    assert report.verdict == "fail"
    assert report.reason.startswith("e2e p99")
    assert evaluated(GOOD, "ttft:p99<=300ms", "ttft:p99<=300ms@flex").verdict == "inconclusive"


def test_the_watch_decides_as_the_rule_above():
    rng = np.random.default_rng(9)
    for median_s in (0.05, 0.1, 0.2):
        requests = lognormal_requests(rng, 500, median_s)
        watch = Watch([parse_target(f"ttft:p99<={true_p99(0.1) * 1e3}ms")], Rules())
        is_done = any(watch.add(record) for record in requests)
        expected = gate_once([record.chunks[0].stamp_ns / 1e9 - record.scheduled_ns / 1e9 for record in requests], true_p99(0.1))
        assert (watch.results[0].verdict, watch.num_taken) == expected
        assert is_done is (expected[0] is not Verdict.INCONCLUSIVE)


def test_number_of_looks():
    watch = Watch([parse_target("ttft:p99<=100ms")], Rules())
    for index in range(400):
        watch.add(request(index, 0.1 if index % 100 else 0.2))
    assert watch.look == num_looks(400)
    assert num_looks(0) == num_looks(62 - 1) == 1


def test_the_watch_takes_requests_in_the_order_of_the_plan():
    watch = Watch([parse_target("ttft:p99<=300ms")], Rules())
    for index in range(1, 1000):
        assert not watch.add(request(index, 0.1))
    assert watch.num_taken == 0
    assert watch.add(request(0, 0.1))
    assert (watch.num_taken, watch.look) == (1000, 1)
