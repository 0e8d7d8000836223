"""What must hold of a simulated replica after every turn (cheap), and of all its books now and then (deep)."""

from __future__ import annotations

from ultrafast.bench.simulate.passes import SimulatedPasses
from ultrafast.bench.simulate.replica import Replica
from ultrafast.core.request import RequestState
from ultrafast.core.tiers import ServiceTier
from ultrafast.kv.segment import Segment, SequenceKv
from ultrafast.sched import admission


class Invariants:
    """Watches the replicas of a fleet.

    Attributes:
        num_checks, num_deep_checks: how many were made.
    """

    def __init__(self, deep_every: int) -> None:
        self._deep_every = deep_every
        self.num_checks = 0
        self.num_deep_checks = 0

    def watch(self, replica: Replica, now: float) -> None:
        self.num_checks += 1
        self._check(replica)
        _check_order(replica, now)
        if self.num_checks % self._deep_every == 0:
            self.num_deep_checks += 1
            check_books(replica)
            _check_waits(replica, now)

    def _check(self, replica: Replica) -> None:
        scheduler, limits = replica.scheduler, replica.spec.limits
        usage = scheduler.kv_usage
        counts = (usage.num_running_tokens, usage.num_cached_tokens, usage.num_free_tokens)
        assert sum(counts) == limits.kv_capacity_tokens, "free + used = total"
        assert min(counts) >= 0, "less than no cells"
        assert scheduler.num_running <= limits.max_num_running, "too many run"
        assert scheduler.num_paused <= limits.max_num_paused, "too many are paused"
        state = scheduler._state
        num_known = scheduler.num_running + scheduler.num_paused + scheduler.num_waiting
        assert num_known == len(state.live), "a request was lost"
        assert len(state.ledger.leaves) <= limits.max_num_cached, "too many leaves"
        plan = replica.current_plan
        assert plan is None or 0 < plan.num_tokens <= limits.max_step_tokens, "a plan beyond its bounds"


def _check_order(replica: Replica, now: float) -> None:
    """No later deadline of a tier starts for the first time while an earlier one waits that could have started as well."""
    state = replica.scheduler._state
    for live in reversed(state.running):
        if live.scheduled_s != now:
            continue
        head = state.waiting.head_of(live.rank)
        if head is not None and head.state is RequestState.WAITING:
            assert (head.deadline_s, head.order) >= (live.deadline_s, live.order), "a later deadline started"


def check_books(replica: Replica) -> None:
    """Count everything that is counted incrementally, from the ground up."""
    state, passes = replica.scheduler._state, replica.passes
    tree = state.ledger._tree
    sequences = [live.sequence for live in state.holders if live.sequence is not None] + state.ledger.leaves.all()
    segments = {id(segment): segment for sequence in sequences for segment in sequence.path()}
    assert sum(len(segment.tokens) for segment in segments.values()) == tree.num_used, "cells that nobody counts"
    evictable = sum(len(segment.tokens) for segment in segments.values() if segment.num_active == 0)
    assert evictable == tree.num_evictable, "evictable cells"
    for segment in segments.values():
        _check_segment(segment)
    for sequence in sequences:
        assert sequence.length == sequence.tail.end, "a sequence ends where its tail ends"
    _check_lengths(sequences, replica, passes)
    for live in state.holders:
        assert live.sequence is not None, "a holder without a sequence"
        assert live.num_computed == live.sequence.length, "computed tokens"
    promised = admission.num_promised(state.holders, replica.spec.limits)
    assert state.most_promised is None or state.most_promised >= promised, "less promised than there is"
    assert len(state.waiting) == sum(state.waiting.nums()), "waiting requests"
    for rank in range(len(ServiceTier)):
        assert state.num_holding[rank] == sum(live.rank == rank for live in state.holders), "holders by rank"
        members = state.waiting._lanes[rank].members
        assert state.waiting.num_tokens_of(rank) == sum(len(live.tokens) for live in members), "waiting tokens"


def _check_segment(segment: Segment) -> None:
    assert segment.holders, "a segment without holders"
    assert segment.num_active == sum(holder.is_active for holder in segment.holders), "active holders"
    if segment.parent is not None:
        assert segment.holders <= segment.parent.holders, "holders of a segment hold its parent"
        assert segment in segment.parent.children[segment.tokens[0]], "a parent knows its children"


def _check_lengths(sequences: list[SequenceKv], replica: Replica, passes: object) -> None:
    """While a step runs, the engine is ahead of the books by what is in the step."""
    if replica.scheduler._state.ledger.has_ops or not isinstance(passes, SimulatedPasses):
        return
    plan = replica.current_plan
    ahead = {item.seq_id: len(item.tokens) for item in plan.work} if plan else {}
    for sequence in sequences:
        assert passes.length(sequence.seq_id) == sequence.length + ahead.get(sequence.seq_id, 0), "engine and books"


def _check_waits(replica: Replica, now: float) -> None:
    """Nobody waits for a first place longer than its tier allows (plus the step under way)."""
    state, policies = replica.scheduler._state, replica.spec.limits.tiers
    for live in state.live.values():
        if live.state is RequestState.WAITING:
            assert now - live.request.arrival_s <= policies[live.rank].queue_ttl_s + 1e-6, "waits beyond its time"
