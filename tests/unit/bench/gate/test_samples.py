"""Which values a target is judged by."""

import math

import pytest
from tests.unit.bench.synthetic import request

from ultrafast.bench.gate.samples import sample
from ultrafast.bench.gate.targets import parse_target
from ultrafast.bench.records import Outcome


def flat(requests, target):
    found = sample(requests, parse_target(target))
    return [pytest.approx(float(value)) for values in found.values for value in values], found


def test_each_metric():
    one = request(0, 0.2, [0.01, 0.03, 0.01, 0.03])
    assert flat([one], "ttft:p99<=1")[0] == [0.2]
    assert flat([one], "e2e:p99<=1")[0] == [0.28]
    assert flat([one], "gap:p99<=1")[0] == [0.01, 0.03, 0.01, 0.03]
    assert flat([one], "itl:p99<=1")[0] == [0.01, 0.03, 0.01, 0.03]
    assert flat([one], "tpot:p99<=1")[0] == [0.02]
    assert flat([one], "jitter:p99<=1")[0] == [0.01]
    assert flat([one], "max_gap:p99<=1")[0] == [0.03]
    assert flat([one], "jitter<=1")[0] == [0.01, 0.03, 0.01, 0.03]
    assert flat([one], "errors<=1%")[0] == [0]


def test_a_failed_request_never_answers():
    failed = request(0, None, outcome=Outcome.FAILED)
    assert flat([failed], "ttft:p99<=1s")[0] == [math.inf]
    assert flat([request(0, 0.1, outcome=Outcome.FAILED)], "e2e:p99<=1s")[0] == [math.inf]
    values, found = flat([failed], "itl:p99<=1s")
    assert (values, found.num_not_applicable) == ([], 1)
    assert flat([failed], "errors<=1%")[0] == [1]


def test_too_short_for_the_figure():
    _, found = flat([request(0, 0.1), request(1, 0.1, [0.1])], "jitter<=1s")
    assert (found.values, found.num_not_applicable) == ([], 2)


def test_nothing_behind_an_open_request_counts():
    cut = request(2, None, outcome=Outcome.CANCELLED, end_s=0.1)
    requests = [request(0, 0.1), request(1, 0.1), cut, request(3, 0.1)]
    values, found = flat(requests, "ttft:p99<=300ms")
    assert (values, found.num_open) == ([0.1, 0.1], 2)


def test_an_open_request_that_waited_too_long_is_a_violation():
    cut = request(1, None, outcome=Outcome.CANCELLED, end_s=0.5)
    requests = [request(0, 0.1), cut, request(2, 0.1)]
    assert flat(requests, "ttft:p99<=300ms")[0] == [0.1, math.inf, 0.1]
    assert flat(requests, "ttft:p99<=600ms")[0] == [0.1]


def test_an_open_request_with_a_first_token_has_its_ttft():
    cut = request(0, 0.2, [0.1], outcome=Outcome.CANCELLED)
    assert flat([cut], "ttft:p99<=1s")[0] == [0.2]
    assert flat([cut], "e2e:p99<=1s")[1].num_open == 1
    assert flat([cut], "itl:p99<=1s")[1].num_open == 1


def test_tiers():
    requests = [request(0, 0.1, tier="fast"), request(1, 0.2, tier="flex"), request(2, 0.3)]
    assert flat(requests, "ttft:p99<=1s")[0] == [0.1, 0.2, 0.3]
    assert flat(requests, "ttft:p99<=1s@priority")[0] == [0.1]
    assert flat(requests, "ttft:p99<=1s@default")[0] == [0.3]
