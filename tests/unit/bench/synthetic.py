"""Request records of a server whose true distribution is known."""

import math

import numpy as np

from ultrafast.bench.records import (
    Chunk,
    ErrorClass,
    Failure,
    LoopLag,
    Outcome,
    RequestRecord,
    Run,
    RunRecord,
    Scenario,
    Usage,
    Window,
)

SIGMA = 0.3
Z99 = 2.3263479


def true_p99(median_s, sigma=SIGMA):
    return median_s * math.exp(Z99 * sigma)


def request(index, ttft_s, gaps_s=(), *, tier=None, outcome=Outcome.OK, at_s=None, end_s=None, prompt=100, output=None):
    """One record: planned at `at_s` (index x 10 ms), first chunk after `ttft_s` (None: no chunk), then the gaps."""
    scheduled = round((index * 0.01 if at_s is None else at_s) * 1e9)
    chunks = []
    if ttft_s is not None:
        stamps = scheduled + np.round(np.cumsum([ttft_s, *gaps_s]) * 1e9).astype(int)
        chunks = [Chunk(int(stamp), 1) for stamp in stamps]
    end_ns = chunks[-1].stamp_ns if chunks else scheduled
    return RequestRecord(
        index=index,
        outcome=outcome,
        scheduled_ns=scheduled,
        sent_ns=scheduled,
        headers_ns=scheduled,
        end_ns=end_ns if end_s is None else scheduled + round(end_s * 1e9),
        chunks=chunks,
        tier_requested=tier,
        usage=Usage(prompt, len(chunks) if output is None else output),
        num_asked_prompt_tokens=100,
        num_asked_output_tokens=len(chunks),
        failure=Failure(ErrorClass.SERVER_ERROR, "HTTP 500: out of order") if outcome is Outcome.FAILED else None,
    )


def lognormal_requests(rng, num_requests, median_s, sigma=SIGMA):
    return [request(index, ttft_s) for index, ttft_s in enumerate(rng.lognormal(math.log(median_s), sigma, num_requests))]


def run_of(requests, *, flags=(), loop_lag_s=0.0, **scenario):
    fields = {"name": "synthetic", "url": "http://127.0.0.1:1", "model": "m", "endpoint": "chat", "arrival": "poisson"} | scenario
    last = max((each.scheduled_ns for each in requests), default=0)
    record = RunRecord(
        run_id="r",
        started_at="2026-01-01T00:00:00+00:00",
        client_version="0",
        scenario=Scenario(**fields),
        window=Window(0, last),
        loop_lag=LoopLag(p99_s=loop_lag_s),
        flags=list(flags),
        environment={"client.cpu": "test cpu", "client.host": "box"},
    )
    return Run(record, list(requests))
