import math

import pytest
from tests.unit.bench.stream_records import MS, delta, record_of, run_of, sse, truth_reads

from ultrafast.bench.metrics import samples, summarise
from ultrafast.bench.records import ErrorClass, Failure, FlagLevel, LoopLag, Outcome, RequestRecord
from ultrafast.bench.validity import judge, touched


def ok(num_tokens: int = 20, **options) -> RequestRecord:
    return record_of(truth_reads(num_tokens, **options))


def failed(scheduled_ms: float = 0) -> RequestRecord:
    failure = Failure(ErrorClass.OVERLOADED, "no", 503)
    ns = int(scheduled_ms * MS)
    return RequestRecord(index=0, outcome=Outcome.FAILED, scheduled_ns=ns, sent_ns=ns, end_ns=ns + MS, failure=failure)


def flags_of(requests, **scenario):
    run = run_of(requests, **scenario)
    return {flag.code: flag for flag in judge(run, summarise(run), len(requests))}


def test_failures_are_infinite_in_adj_only():
    run = run_of([ok(), ok(), ok(), failed()])
    ttft = summarise(run).overall.metrics["ttft"]
    p50, p99 = ttft.percentiles[0], ttft.percentiles[-1]
    assert (p50.value, p50.adj) == (0.2, 0.2)
    assert p99.value == 0.2
    assert p99.is_adj_infinite
    assert samples(run.requests, "ttft", adjusted=True).count(math.inf) == 1
    assert math.inf not in samples(run.requests, "tpot", adjusted=True)


def test_no_interval_below_the_size_at_which_one_exists():
    percentiles = summarise(run_of([ok(3) for _ in range(40)])).overall.metrics["ttft"].percentiles
    assert [percentile.low is not None for percentile in percentiles] == [True, True, False, False]


def test_jitter_leaves_out_differences_between_requests():
    slow = record_of([(200 + 100 * number, sse(delta(content="x"))) for number in range(20)])
    fast = record_of([(200 + 10 * number, sse(delta(content="x"))) for number in range(20)])
    for request in (slow, fast):
        request.outcome = Outcome.OK
    assert summarise(run_of([slow, fast])).overall.jitter_s == pytest.approx(0.0, abs=1e-12)


def test_pooled_jitter_of_the_truth():
    gaps = [0.010, 0.030] * 9 + [0.010]
    mean = sum(gaps) / len(gaps)
    expected = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert summarise(run_of([ok(), ok()])).overall.jitter_s == pytest.approx(expected)


def test_throughput_counts_what_was_stamped_inside_the_window():
    """Tokens of a request that was still running at the end of the window count, those after it do not."""
    throughput = summarise(run_of([ok()], end_ms=300)).overall.throughput
    inside = [200, 210, 240, 250, 280, 290]
    assert throughput.output_tokens_per_s == pytest.approx(len(inside) / 0.3)
    assert throughput.requests_per_s == 0
    assert throughput.drain_s == pytest.approx(0.275)


def test_two_tokens_per_chunk_count_twice():
    throughput = summarise(run_of([ok(per_chunk=2)], end_ms=1000)).overall.throughput
    assert throughput.output_tokens_per_s == pytest.approx(20)
    assert throughput.chunks_per_s == pytest.approx(10)


def test_goodput_counts_every_scheduled_request():
    slow = record_of([(500, sse(delta(content="x"))), (510, sse("[DONE]"))])
    goodput = summarise(run_of([ok(), slow, failed()], end_ms=2000, goodput={"ttft": 0.25, "tpot": 0.1})).overall.goodput
    assert goodput is not None
    assert (goodput.num_good, goodput.num_scheduled) == (1, 3)
    assert goodput.per_s == 0.5
    assert goodput.num_not_applicable == {"tpot": 1}


def test_per_tier_groups():
    fast, slow = ok(), failed()
    fast.tier_requested, slow.tier_requested = "ultrafast", "flex"
    groups = {group.name: group for group in summarise(run_of([slow, fast])).groups}
    assert list(groups) == ["all", "ultrafast", "flex"]
    assert (groups["ultrafast"].num_ok, groups["flex"].num_failed) == (1, 1)
    assert groups["flex"].metrics["ttft"].percentiles[0].is_adj_infinite


def test_a_request_that_never_became_due_is_no_failure():
    later = RequestRecord(index=0, outcome=Outcome.CANCELLED, scheduled_ns=5000 * MS)
    due = RequestRecord(index=0, outcome=Outcome.CANCELLED, scheduled_ns=500 * MS)
    assert not summarise(run_of([ok(), later], end_ms=1000)).overall.metrics["ttft"].percentiles[-1].is_adj_infinite
    assert summarise(run_of([ok(), due], end_ms=1000)).overall.metrics["ttft"].percentiles[-1].is_adj_infinite


def test_a_clean_run_has_no_grave_flag():
    assert all(flag.level is FlagLevel.NOTE for flag in flags_of([ok() for _ in range(5)], end_ms=5000).values())


def test_conservation():
    run = run_of([ok()])
    flags = judge(run, summarise(run), 2)
    assert flags[0].code == "conservation"
    assert flags[0].level is FlagLevel.INVALID


def test_two_tokens_per_chunk_without_counts_are_unreliable():
    flags = list(flags_of([ok(per_chunk=2)]).values())
    assert touched(flags, "itl")
    assert touched(flags, "jitter")
    assert touched(flags, "tpot")
    assert not touched(flags, "ttft")
    assert not touched(list(flags_of([ok(per_chunk=2, is_counted=True)]).values()), "itl")


def test_missing_usage_is_unreliable_and_never_guessed():
    requests = [ok(has_usage=False)]
    assert touched(list(flags_of(requests).values()), "tpot")
    assert summarise(run_of(requests)).overall.throughput.output_tokens_per_s is None


def test_a_buffered_stream_is_unreliable():
    events = [delta(content="x") for _ in range(20)]
    flags = list(flags_of([record_of([(600, sse(*events, "[DONE]"))])]).values())
    for metric in ("ttft", "gap", "jitter", "itl", "tpot"):
        assert touched(flags, metric), metric


def test_a_client_that_lags_makes_the_run_invalid():
    run = run_of([ok()])
    run.record.loop_lag = LoopLag(0.001, 0.05, 0.1, 100)
    flags = judge(run, summarise(run), 1)
    assert (flags[0].code, flags[0].level) == ("loop_lag", FlagLevel.INVALID)


def test_lag_that_is_small_beside_ttft_only_touches_gaps():
    run = run_of([ok()], end_ms=5000)
    run.record.loop_lag = LoopLag(0.001, 0.008, 0.1, 100)
    flags = judge(run, summarise(run), 1)
    assert touched(flags, "gap")
    assert not touched(flags, "ttft")


def test_prompts_of_a_wrong_length_are_told():
    requests = [ok() for _ in range(4)]
    for request in requests:
        request.num_asked_prompt_tokens = 20
    assert "prompt_length" in flags_of(requests)
    for request in requests:
        request.num_asked_prompt_tokens = 10
    assert "prompt_length" not in flags_of(requests)


def test_short_answers_are_told():
    request = ok()
    request.num_asked_output_tokens = 40
    assert "output_length" in flags_of([request])


def test_a_warm_cache_is_told_unless_declared():
    request = ok()
    request.usage = type(request.usage)(1000, 20, 900)
    assert flags_of([request])["warm_cache"].level is FlagLevel.UNRELIABLE
    assert "warm_cache" not in flags_of([request], is_cache_cold=False)


def test_late_dispatch_makes_an_open_loop_invalid():
    requests = [ok(3) for _ in range(20)]
    for number, request in enumerate(requests):
        request.scheduled_ns = number * 10 * MS
        request.sent_ns = 5000 * MS
    assert flags_of(requests, rate_per_s=100.0, end_ms=200)["late_dispatch"].level is FlagLevel.INVALID


def test_a_window_shorter_than_its_requests_has_no_rate():
    flags = list(flags_of([ok()], end_ms=500).values())
    assert touched(flags, "throughput")
    assert not touched(flags, "ttft")
    assert not touched(list(flags_of([ok()], end_ms=5000).values()), "throughput")
