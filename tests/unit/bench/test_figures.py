"""Every figure of the stream whose truth is known, on stamps that are exact."""

import pytest
from tests.unit.bench.stream_records import FINISH, MS, ROLE, delta, record_of, sse, truth_reads, usage

from ultrafast.bench.figures import figures_of
from ultrafast.bench.records import ChunkKind, ErrorClass, Outcome


def test_the_role_chunk_is_no_token_and_the_end_is_no_gap():
    record = record_of(truth_reads(20), scheduled_ms=-30)
    figures = figures_of(record)
    assert record.outcome is Outcome.OK
    assert len(record.chunks) == 20
    assert figures.ttft_s == 0.230
    assert figures.ttft_service_s == 0.200
    assert figures.dispatch_lag_s == 0.030
    assert len(figures.gaps_s) == 19
    assert set(figures.gaps_s) == {0.010, 0.030}
    assert figures.tpot_s == pytest.approx((10 * 0.010 + 9 * 0.030) / 19)
    assert figures.e2e_s == pytest.approx(0.230 + 10 * 0.010 + 9 * 0.030)
    assert figures.close_lag_s == 0.005
    assert figures.max_gap_s == 0.030
    assert figures.jitter_s == pytest.approx(0.01, rel=0.01)
    assert figures.num_coalesced == 0


def test_itl_needs_counts_or_as_many_chunks_as_tokens():
    assert len(figures_of(record_of(truth_reads(20))).itl) == 19
    assert figures_of(record_of(truth_reads(20, per_chunk=2))).itl == []
    counted = figures_of(record_of(truth_reads(20, per_chunk=2, is_counted=True)))
    assert set(counted.itl) == {(0.005, 2), (0.015, 2)}


def test_tpot_leaves_out_the_tokens_of_the_first_chunk():
    counted = figures_of(record_of(truth_reads(20, per_chunk=2, is_counted=True)))
    assert counted.tpot_s == pytest.approx((5 * 0.010 + 4 * 0.030) / 18)
    assert not counted.is_first_assumed
    assumed = figures_of(record_of(truth_reads(20, per_chunk=2)))
    assert assumed.is_first_assumed


def test_tpot_leaves_out_a_first_burst():
    burst = [delta(content="a"), delta(content="b"), delta(content="c")]
    record = record_of([(200, sse(*burst)), (240, sse(delta(content="d"))), (260, sse(delta(content="e"), FINISH, usage(5)))])
    assert figures_of(record).tpot_s == pytest.approx(0.030)
    assert [chunk.is_coalesced for chunk in record.chunks] == [False, True, True, False, False]


def test_reasoning_counts_for_ttft_and_not_for_the_visible_one():
    thinking = [(200, sse(delta(reasoning_content="hm"))), (240, sse(delta(reasoning="hm")))]
    record = record_of([(50, sse(ROLE)), *thinking, (400, sse(delta(content="yes"), FINISH, usage(3)))])
    figures = figures_of(record)
    assert figures.ttft_s == 0.200
    assert figures.ttfot_s == 0.400
    assert [chunk.kind for chunk in record.chunks] == [ChunkKind.REASONING, ChunkKind.REASONING, ChunkKind.CONTENT]


def test_tool_calls_are_output():
    name = delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}])
    empty = delta(tool_calls=[{"index": 0, "function": {"arguments": ""}}])
    record = record_of([(50, sse(ROLE, empty)), (200, sse(name)), (210, sse(FINISH, "[DONE]"))])
    assert figures_of(record).ttft_s == 0.200
    assert record.chunks[0].kind is ChunkKind.TOOL


def test_missing_usage_leaves_tpot_undefined():
    figures = figures_of(record_of(truth_reads(20, has_usage=False)))
    assert figures.tpot_s is None
    assert figures.itl == []
    assert figures.ttft_s == 0.200


@pytest.mark.parametrize("num_tokens", [1, 2])
def test_few_tokens_have_no_jitter_and_one_has_no_tpot(num_tokens: int):
    figures = figures_of(record_of(truth_reads(num_tokens)))
    assert figures.jitter_s is None
    assert (figures.tpot_s is None) == (num_tokens == 1)


def test_an_error_event_under_200_is_a_failure():
    record = record_of([(50, sse(ROLE)), (60, sse({"error": {"message": "out of memory", "code": "oom"}}, "[DONE]"))])
    assert record.outcome is Outcome.FAILED
    assert record.failure is not None
    assert (record.failure.kind, record.failure.code) == (ErrorClass.STREAM_ERROR, "oom")


def test_an_error_after_tokens_is_a_failure_too():
    record = record_of([(200, sse(delta(content="a"))), (220, sse({"error": "boom"}, FINISH, "[DONE]"))])
    assert record.outcome is Outcome.FAILED
    assert len(record.chunks) == 1


@pytest.mark.parametrize(
    ("reads", "is_broken", "kind"),
    [
        ([(200, sse(delta(content="a")))], True, ErrorClass.CUT),
        ([(200, sse(delta(content="a")))], False, ErrorClass.CUT),
        ([(200, sse(ROLE, FINISH, "[DONE]"))], False, ErrorClass.EMPTY),
        ([(200, b"data: {not json}\n\n")], False, ErrorClass.PROTOCOL),
        ([(200, b'data: {"choices": 5}\n\n')], False, ErrorClass.PROTOCOL),
    ],
)
def test_incomplete_streams_fail(reads, is_broken: bool, kind: ErrorClass):
    record = record_of(reads, is_broken=is_broken)
    assert record.outcome is Outcome.FAILED
    assert record.failure is not None
    assert record.failure.kind is kind


@pytest.mark.parametrize(
    ("status", "kind"), [(429, "overloaded"), (503, "overloaded"), (400, "client_error"), (500, "server_error")]
)
def test_statuses(status: int, kind: str):
    headers = {"content-type": "application/json", "retry-after": "2"}
    record = record_of([(30, b'{"error":{"message":"no","code":"c"}}')], status=status, headers=headers)
    assert record.failure is not None
    assert (record.failure.kind, record.failure.message, record.failure.code) == (kind, "no", "c")
    assert record.failure.retry_after_s == 2.0


def test_a_plain_json_answer_is_no_stream():
    record = record_of([(30, b'{"choices":[]}')], headers={"content-type": "application/json"})
    assert record.failure is not None
    assert record.failure.kind is ErrorClass.PROTOCOL


def test_running_counts_may_hold_text_back():
    """A chunk without a new token passes its wait on to the next one with tokens."""
    events = [(200, 1), (210, 1), (230, 3), (260, 4)]
    reads = [(at, sse(delta(content="x") | {"usage": {"completion_tokens": count}})) for at, count in events]
    record = record_of([*reads, (265, sse(FINISH, "[DONE]"))])
    assert [chunk.num_tokens for chunk in record.chunks] == [1, 0, 2, 1]
    assert figures_of(record).itl == [(0.015, 2), (0.030, 1)]


def test_the_four_parts_sum_to_what_the_client_saw():
    timing = {"server-timing": "queue;dur=20.0, prefill;dur=130"}
    figures = figures_of(record_of(truth_reads(20), scheduled_ms=-5, headers=timing))
    parts = figures.parts
    assert parts is not None
    assert (parts.queue_s, parts.compute_s) == (0.020, 0.130)
    assert parts.network_s == pytest.approx(0.055)
    assert parts.network_s + parts.queue_s + parts.compute_s + parts.output_s == pytest.approx(figures.e2e_s)


def test_parts_that_a_stream_tells_at_its_end_are_those_of_the_servers_metrics():
    timing = b": ping\n\n: server-timing network;dur=10.0, queue;dur=20.0, compute;dur=500.0, total;dur=560.0\n\n"
    reads = truth_reads(20)
    reads[-1] = (reads[-1][0], timing + reads[-1][1])
    figures = figures_of(record_of(reads, headers={"server-timing": "queue;dur=20.0, prefill;dur=130"}))
    parts = figures.parts
    assert parts is not None
    assert figures.e2e_s == pytest.approx(0.570)
    assert (parts.queue_s, parts.compute_s) == (0.020, 0.500)
    assert (parts.output_s, parts.network_s) == (pytest.approx(0.030), pytest.approx(0.020))


def test_a_server_that_claims_more_than_the_client_saw_is_cut():
    parts = figures_of(record_of(truth_reads(3), headers={"server-timing": "queue;dur=5000, prefill;dur=9"})).parts
    assert parts is not None
    assert (parts.queue_s, parts.compute_s, parts.network_s) == (0.200, 0.0, 0.0)


def test_a_stall_is_counted():
    events = [(at, sse(delta(content="x"))) for at in (200, 210, 220, 230, 1230, 1240)]
    figures = figures_of(record_of([*events, (1250, sse(FINISH))]))
    assert figures.num_stalls == 1
    assert figures.max_gap_s == 1.0


def test_stamps_are_relative_to_the_run():
    assert record_of(truth_reads(3)).chunks[0].stamp_ns == 200 * MS
