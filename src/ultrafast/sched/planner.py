"""Builds one plan: admission, then one token for everyone who decodes, then prefill chunks in what is left of the step.

    waiting --admit--> running:  | decodes: 1 token each | chunk | chunk | ...     sum <= max_step_tokens
                                   a decode that finds no cell preempts exactly one request, perhaps itself

A step of few decodes and nothing else may get drafts on top (`speculation`).

Every "who" and "how much" is a policy in a file of its own; here is only the order in which they are asked.
"""

from __future__ import annotations

from ultrafast.core.step import SequenceWork
from ultrafast.kv.segment import SequenceKv
from ultrafast.sched import admission
from ultrafast.sched.chunks import Chunk, chunk_budget, divide
from ultrafast.sched.live import LiveRequest
from ultrafast.sched.ordering import arrival_key, choose_victim
from ultrafast.sched.sharing import find_leader
from ultrafast.sched.state import SchedulerState


class Planner:
    """Turns state into the work of the next step. It moves requests between states; it never advances their tokens."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._ledger = state.ledger
        self._limits = state.limits

    def build(self, now: float) -> tuple[SequenceWork, ...]:
        """Decide the work of the next step. Calling it again without a `complete` in between plans afresh."""
        state = self._state
        self._admit(now)
        eligible = state.faults.suspects(state.running) or state.running
        work = self._decodes([live for live in eligible if live.is_decoding], now)
        work += self._prefills([live for live in eligible if not live.is_decoding and live.sequence], len(work), now)
        return self._with_drafts(tuple(work))

    def _with_drafts(self, work: tuple[SequenceWork, ...]) -> tuple[SequenceWork, ...]:
        state = self._state
        if state.faults.is_isolating or state.faults.slack:
            return work
        return state.drafting.extend(work, state.live, self._ledger.num_free)

    def _admit(self, now: float) -> None:
        while (head := self._state.waiting.head()) is not None and self._has_slot(head):
            if not self._try_start(head, now):
                return

    def _has_slot(self, live: LiveRequest) -> bool:
        """Parked requests that come before this one keep their slots: they were next, and will be soon."""
        free = self._limits.max_num_running - len(self._state.running)
        return free > 0 and free > self._state.followers.num_at_least_as_urgent(live.rank)

    def _try_start(self, live: LiveRequest, now: float) -> bool:
        """Start or park the head of the queue. False: no room for it, and so for nobody behind it."""
        state, ledger = self._state, self._ledger
        if live.blocked_version == ledger.version:
            return False
        match = ledger.match(live.tokens, live.request.cache_salt) if live.can_reuse else None
        num_matched = match.num_tokens if match else 0
        if live.can_reuse and ledger.has_cache and ledger.can_trim:
            leader = find_leader(live, num_matched, state.running)
            if leader:
                state.park(*leader)
                return True
        need = admission.num_needed(live, num_matched, self._limits)
        taken = admission.num_promised(state.running, self._limits) + state.faults.slack
        if state.running and need > ledger.num_available(match) - taken:
            live.blocked_version = ledger.version if not state.faults.slack else -1
            return False
        state.start(match, now)
        return True

    def _decodes(self, decoding: list[LiveRequest], now: float) -> list[SequenceWork]:
        chosen: list[LiveRequest] = []
        for live in sorted(decoding, key=arrival_key):
            if live.sequence is not None and self._find_cell(live, len(chosen), now):
                chosen.append(live)
        return [_work(live, 1) for live in chosen]

    def _find_cell(self, live: LiveRequest, num_taken: int, now: float) -> bool:
        """Make sure of one more cell beside those taken in this step. False: `live` itself had to give way.

        `live` is among the candidates, so nobody more urgent gives way to it; and since decodes are planned most urgent first,
        nobody who is in the step already does.
        """
        state = self._state
        while not self._make_room(num_taken + 1):
            assert len(state.running) > 1, "a request that runs alone fits: its length is limited to the pool"
            victim = choose_victim(
                other for other in state.running if other is live or self._ledger.num_reclaimable(_sequence(other)) > 0
            )
            assert victim is not None, "the request in need is itself a candidate"
            state.preempt(victim, now)
            if victim is live:
                return False
        return True

    def _prefills(self, prefilling: list[LiveRequest], num_decodes: int, now: float) -> list[SequenceWork]:
        """Divide the step's prefill budget; if nobody at all can advance for want of cells, one gives way."""
        state = self._state
        while prefilling:
            budget = chunk_budget(state.cost, self._limits, num_decodes)
            work = self._fit(divide(budget, prefilling), num_decodes)
            if work or num_decodes:
                return work
            victim = choose_victim(state.running)
            assert victim is not None, "somebody prefills, so somebody runs"
            assert len(state.running) > 1, "a request that runs alone fits: it was checked when added"
            state.preempt(victim, now)
            prefilling = [live for live in prefilling if live is not victim]
        return []

    def _fit(self, chunks: list[Chunk], num_taken: int) -> list[SequenceWork]:
        """Cut chunks to the cells that can be had, evicting cached leaves as needed; prefills never preempt decodes."""
        work: list[SequenceWork] = []
        for chunk in chunks:
            num_tokens = min(chunk.num_tokens, self._room(num_taken))
            if num_tokens > 0 and self._make_room(num_taken + num_tokens):
                work.append(_work(chunk.live, num_tokens))
                num_taken += num_tokens
        return work

    def _room(self, num_taken: int) -> int:
        """Cells for prefill. One that runs alone always tries with one cell: a fault must not stop it for good."""
        room = self._ledger.num_available(None) - num_taken - self._state.faults.slack
        return max(1, room) if len(self._state.running) == 1 else room

    def _make_room(self, num_tokens: int) -> bool:
        slack = self._state.faults.slack if len(self._state.running) > 1 else 0
        return self._ledger.make_room(num_tokens + slack)


def _work(live: LiveRequest, num_tokens: int) -> SequenceWork:
    start, end = live.num_computed, live.num_computed + num_tokens
    return SequenceWork(
        request_id=live.request_id,
        seq_id=_sequence(live).seq_id,
        start=start,
        tokens=tuple(live.tokens[start:end]),
        samples=end == len(live.tokens),
        output_index=live.num_output,
    )


def _sequence(live: LiveRequest) -> SequenceKv:
    assert live.sequence is not None, f"{live.request_id} does not run"
    return live.sequence
