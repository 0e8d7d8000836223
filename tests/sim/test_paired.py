"""Deterministic requests on simulated time: alone in step and pool, cut always alike, and in turn with everybody else."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

from tests.sim.harness import VOCAB_SIZE, make_limits, make_request

from ultrafast.core.clock import ManualClock
from ultrafast.core.events import DropReason, Event, RequestFinished, StepFinished, TokenProduced
from ultrafast.core.request import FinishReason, Request, RequestSlo
from ultrafast.core.step import SequenceWork
from ultrafast.core.tiers import DEFAULT_POLICIES, ServiceTier, TierPolicy
from ultrafast.engine.fake import FakeExecutor, expected_tokens
from ultrafast.engine.kvstore.carrier import KvCarrier
from ultrafast.engine.paired import PairedExecutor
from ultrafast.kv.ledger import num_sequences
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.paired import CHUNK_TOKENS, PairedScheduler, limits_alone
from ultrafast.sched.scheduler import Scheduler

ULTRA, DEFAULT, FLEX = ServiceTier.ULTRAFAST, ServiceTier.DEFAULT, ServiceTier.FLEX


class _Pair:
    """A paired scheduler and executor, driven as the engine loop does."""

    def __init__(self, limits: SchedulerLimits | None = None) -> None:
        limits = limits or make_limits(kv_capacity_tokens=2000, max_request_tokens=1000)
        self.clock = ManualClock()
        first_id = num_sequences(limits.max_num_running + limits.max_num_paused, limits.max_num_cached)
        alone = limits_alone(limits, first_id)
        self.alone = Scheduler(alone)
        self.scheduler = PairedScheduler(Scheduler(limits), self.alone)
        self.executors = [
            FakeExecutor(
                capacity_tokens=one.kv_capacity_tokens,
                max_step_tokens=one.max_step_tokens,
                clock=self.clock,
                vocab_size=VOCAB_SIZE,
                num_sequences=first_id,
            )
            for one in (limits, alone)
        ]
        self.executor = PairedExecutor(*self.executors, first_id)
        self.carrier = KvCarrier(self.executor, self.clock)
        self.requests: dict[str, Request] = {}
        self.output: dict[str, list[int]] = defaultdict(list)
        self.first_token_s: dict[str, float] = {}
        self.finished: dict[str, RequestFinished] = {}
        self.work: dict[str, list[SequenceWork]] = defaultdict(list)
        self.used_s = {True: 0.0, False: 0.0}
        self.stats: list[StepFinished] = []

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.requests[request.request_id] = request
            self.output[request.request_id] = list(request.output_tokens)
            self.executor.begin_request(request)
            self._take(self.scheduler.add(request, self.clock()))

    def step(self) -> None:
        plan = self.scheduler.plan(self.clock())
        assert not self.carrier.apply(plan.kv_ops)
        is_alone = [self.requests[item.request_id].is_deterministic for item in plan.work]
        assert not any(is_alone) or len(is_alone) == 1, "nothing is beside a deterministic request"
        for item in plan.work:
            self.work[item.request_id].append(item)
        begin_s = self.clock()
        result = self.executor.run(plan)
        if plan.work:
            self.used_s[is_alone[0]] += self.clock() - begin_s
        self._take(self.scheduler.complete(plan, result, self.clock()))

    def run(self) -> None:
        for _ in range(20_000):
            if not self.scheduler.has_work:
                break
            self.step()
        assert self.finished.keys() == self.requests.keys()
        for name, request in self.requests.items():
            if self.finished[name].reason not in (FinishReason.ABORT, FinishReason.REJECT):
                assert self.output[name] == expected_tokens(request, vocab_size=VOCAB_SIZE), name
        assert self.executors[1].num_free == 1000, "the lone pool is empty"

    def cuts(self, name: str) -> list[tuple[int, int]]:
        return [(item.start, len(item.tokens)) for item in self.work[name]]

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, TokenProduced):
                self.output[event.request_id].append(event.token)
                self.first_token_s.setdefault(event.request_id, self.clock())
            elif isinstance(event, RequestFinished):
                self.finished[event.request_id] = event
                self.executor.end_request(event.request_id)
            elif isinstance(event, StepFinished):
                self.stats.append(event)


def _deterministic(name: str, prompt: int = 100, output: int = 20, **fields: object) -> Request:
    return make_request(name, prompt, output, is_deterministic=True, **fields)  # type: ignore[arg-type]


def _alone_cuts() -> list[tuple[int, int]]:
    pair = _Pair()
    pair.add(_deterministic("d"))
    pair.run()
    return pair.cuts("d")


def test_it_is_computed_alike_whatever_else_runs() -> None:
    rng = random.Random(4)
    pair = _Pair()
    pair.add(*[make_request(f"r{i}", 120, 30, tier=rng.choice(list(ServiceTier))) for i in range(12)])
    for _ in range(30):
        pair.step()
    pair.add(_deterministic("d", arrival_s=pair.clock()))
    pair.run()
    chunks = [(start, min(CHUNK_TOKENS, 100 - start)) for start in range(0, 100, CHUNK_TOKENS)]
    assert _alone_cuts() == [*chunks, *((at, 1) for at in range(100, 119))]
    assert pair.cuts("d") == _alone_cuts()


def test_a_displaced_one_is_computed_again_exactly_as_before() -> None:
    pair = _Pair()
    pair.add(_deterministic("d", tier=FLEX))
    while len(pair.output["d"]) < 8:
        pair.step()
    pair.add(_deterministic("urgent", 40, 5, tier=ULTRA, arrival_s=pair.clock()))
    pair.run()
    assert pair.finished["d"].num_preemptions == 1
    num_first = len(_alone_cuts()) - 12
    assert pair.cuts("d")[num_first:] == _alone_cuts()


def test_one_that_continues_after_a_crash_is_computed_as_if_nothing_had_happened() -> None:
    whole = expected_tokens(_deterministic("d"), vocab_size=VOCAB_SIZE)
    pair = _Pair()
    pair.add(_continued(whole[:7]))
    pair.run()
    assert pair.cuts("d") == _alone_cuts()


def _continued(output: list[int]) -> Request:
    return make_request("d", 100, 20, output=tuple(output), is_deterministic=True)


def test_nothing_is_reused_and_nothing_is_left() -> None:
    pair = _Pair()
    prompt = list(range(1, 200))
    for name in ("first", "second"):
        pair.add(make_request(name, prompt, 4, is_deterministic=True, arrival_s=pair.clock()))
        pair.run()
    assert pair.finished["second"].num_cached_tokens == 0
    pair.add(make_request("third", prompt, 4, arrival_s=pair.clock()))
    pair.run()
    assert pair.finished["third"].num_cached_tokens == 0


def test_equally_urgent_sides_share_the_time_evenly() -> None:
    pair = _Pair()
    pair.add(*[make_request(f"r{i}", 50, 200) for i in range(6)], _deterministic("d", 500, 300))
    while "d" not in pair.finished and "r0" not in pair.finished:
        pair.step()
    assert 0.8 < pair.used_s[True] / pair.used_s[False] < 1.25
    pair.run()


def test_beside_more_urgent_work_it_gets_its_minimum_share() -> None:
    pair = _Pair()
    pair.add(*[make_request(f"r{i}", 50, 400, tier=ULTRA) for i in range(4)], _deterministic("d", 500, 300, tier=FLEX))
    while not any(f"r{i}" in pair.finished for i in range(4)):
        pair.step()
    share = pair.used_s[True] / (pair.used_s[True] + pair.used_s[False])
    assert 0.8 * DEFAULT_POLICIES[FLEX.rank].min_share < share < 2.5 * DEFAULT_POLICIES[FLEX.rank].min_share
    pair.run()


def test_a_more_urgent_one_goes_first_and_the_others_get_theirs() -> None:
    pair = _Pair()
    pair.add(*[make_request(f"r{i}", 50, 100) for i in range(4)])
    pair.step()
    pair.add(_deterministic("d", 200, 50, tier=ULTRA, arrival_s=pair.clock()))
    while "d" not in pair.finished:
        pair.step()
    share = pair.used_s[False] / (pair.used_s[True] + pair.used_s[False])
    assert 0.05 < share < 0.3
    pair.run()


def test_counts_are_those_of_both_sides() -> None:
    pair = _Pair()
    pair.add(make_request("r", 50, 30), _deterministic("d0", 40, 10), _deterministic("d1", 40, 10))
    for _ in range(4):
        pair.step()
    assert (pair.stats[-1].num_running, pair.stats[-1].num_waiting) == (2, 1)
    total = pair.stats[-1].num_kv_tokens_running + pair.stats[-1].num_kv_tokens_cached + pair.stats[-1].num_kv_tokens_free
    assert total == 2000
    pair.run()


def test_aborts_reach_the_side_that_has_the_request() -> None:
    pair = _Pair()
    pair.add(_deterministic("d", 200, 50), make_request("r", 50, 30))
    pair.step()
    pair.step()
    for name in ("d", "r"):
        pair._take(pair.scheduler.abort(name, pair.clock()))
        assert pair.finished[name].reason is FinishReason.ABORT
    pair.run()


def test_one_that_is_longer_than_the_pool_allows_is_refused() -> None:
    pair = _Pair()
    pair.add(_deterministic("d", 1500, 5))
    assert pair.finished["d"].reason is FinishReason.ERROR


def _tiers(**policy: object) -> tuple[TierPolicy, ...]:
    tiers = list(DEFAULT_POLICIES)
    tiers[DEFAULT.rank] = replace(tiers[DEFAULT.rank], **policy)  # type: ignore[arg-type]
    return tuple(tiers)


def _small(**policy: object) -> _Pair:
    limits = make_limits(kv_capacity_tokens=2000, max_request_tokens=1000, max_num_running=2, tiers=_tiers(**policy))
    return _Pair(limits)


def _drop(pair: _Pair, request: Request) -> DropReason | None:
    pair.add(request)
    end = pair.finished.get(request.request_id)
    return end.drop_reason if end is not None else None


def test_the_queue_of_a_tier_is_one_for_both_sides() -> None:
    pair = _small(max_num_waiting=3)
    for i in range(3):
        assert _drop(pair, _deterministic(f"d{i}", 40, 10)) is None, "one place, two wait"
    assert [_drop(pair, make_request(f"r{i}", 40, 10)) for i in range(4)] == [None, None, None, DropReason.QUEUE_FULL]
    assert _drop(pair, _deterministic("d3", 40, 10)) is DropReason.QUEUE_FULL
    for _ in range(2):
        pair.step()
    assert _drop(pair, make_request("r4", 40, 10)) is DropReason.QUEUE_FULL
    assert _drop(pair, _deterministic("d4", 40, 10)) is DropReason.QUEUE_FULL
    assert pair.scheduler.answer(replace(_deterministic("asked"), is_inquiry=True), pair.clock()).reason is FinishReason.REJECT
    pair.run()


def test_who_waits_on_one_side_does_not_take_the_free_places_of_the_other() -> None:
    pair = _small(max_num_waiting=0)
    assert _drop(pair, _deterministic("d0", 40, 10)) is None
    assert [_drop(pair, make_request(f"r{i}", 40, 10)) for i in range(3)] == [None, None, DropReason.QUEUE_FULL]
    assert _drop(pair, _deterministic("d1", 40, 10)) is DropReason.QUEUE_FULL
    pair.run()


def test_the_bound_in_tokens_is_one_for_both_sides() -> None:
    pair = _small(max_waiting_tokens=100)
    pair.add(*[make_request(f"r{i}", 40, 50) for i in range(2)], _deterministic("d0", 40, 50))
    for _ in range(2):
        pair.step()
    assert _drop(pair, _deterministic("d1", 60, 5)) is None
    assert _drop(pair, make_request("r2", 60, 5)) is DropReason.QUEUE_TOKENS_FULL
    assert _drop(pair, make_request("r3", 30, 5)) is None
    pair.run()


def test_a_prediction_counts_what_the_other_side_takes_of_the_time() -> None:
    def drop(other: ServiceTier | None, ttft_s: float) -> DropReason | None:
        pair = _Pair()
        for i in range(4):
            pair.add(_deterministic(f"warm{i}", 100, 5, arrival_s=pair.clock()))
            pair.run()
        if other is not None:
            pair.add(*[make_request(f"r{i}", 50, 400, tier=other) for i in range(2)])
            for _ in range(3):
                pair.step()
        slo = RequestSlo(ttft_s=ttft_s, is_strict=True)
        return _drop(pair, _deterministic("d", 100, 5, slo=slo, arrival_s=pair.clock()))

    at_risk = DropReason.SLO_AT_RISK
    assert drop(None, 0.7) is None
    assert drop(FLEX, 0.8) is None
    assert [drop(DEFAULT, ttft_s) for ttft_s in (0.9, 1.5)] == [at_risk, None]
    assert [drop(ULTRA, ttft_s) for ttft_s in (1.5, 5.0, 8.0)] == [at_risk, at_risk, None], "a tenth is its share"


def test_a_wait_is_measured_with_what_the_other_side_took() -> None:
    """Four wait for the one place of the lone pool; beside as much other work each takes twice as long."""
    pair = _Pair()
    pair.add(*[make_request(f"r{i}", 50, 800) for i in range(2)])
    pair.add(*[_deterministic(f"d{i}", 40, 30) for i in range(8)])
    while "d3" not in pair.finished:
        pair.step()
    begin_s, waiting = pair.clock(), [0, 0, 3, 0]
    predicted_s = pair.alone._state.drain.wait_s(DEFAULT.rank, waiting, pair.clock())
    while "d7" not in pair.first_token_s:
        pair.step()
    assert predicted_s is not None
    assert 0.75 < predicted_s / (pair.clock() - begin_s) < 1.35
    pair.run()
