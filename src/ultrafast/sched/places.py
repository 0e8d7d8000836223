"""Places: who runs. Waiting and paused requests come in, less urgent running ones stand aside for them.

    waiting --start-->  | running: at most max_num_running |  <--resume-- paused: at most max_num_paused
                        |   less urgent ones are paused    |  --pause-->
                        |   for more urgent ones           |

A pause takes effect at the next step border and costs nothing: the paused request keeps its sequence and its KV. For KV that a
more urgent request needs and cannot have otherwise, less urgent requests are preempted, the least urgent first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ultrafast.core.tiers import ServiceTier
from ultrafast.kv.index import Part
from ultrafast.kv.tree import Match
from ultrafast.sched import admission
from ultrafast.sched.kept import choose_loser, may_lose
from ultrafast.sched.live import LiveRequest
from ultrafast.sched.ordering import arrival_key, choose_victim
from ultrafast.sched.sharing import find_leader
from ultrafast.sched.state import SchedulerState
from ultrafast.sched.turns import Turns

_LAST_RANK = len(ServiceTier)


class Places:
    """Fills the running set before each step."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._ledger = state.ledger
        self._limits = state.limits
        self._turns = Turns(state, self._reusable)
        self._promised: list[int] | None = None

    def fill(self, due_ranks: Collection[int], now: float) -> None:
        """Give places away until nobody who wants one can have it.

        Args:
            due_ranks: tiers that are owed an item: each keeps or gets one place in this step (see `turns`).
            now: seconds.
        """
        self._promised = None
        safe = self._turns.give(due_ranks, now)
        head = self._state.waiting.head()
        while head is not None:
            self._resume_paused(head.rank, safe)
            if not self._start(head, safe, now):
                break  # no room for it, and so for nobody behind it; a paused one already has what it needs
            head = self._state.waiting.head()
        if self._state.paused:
            self._resume_paused(_LAST_RANK, safe)

    # -- places

    @property
    def _num_free(self) -> int:
        return self._limits.max_num_running - len(self._state.running)

    def _victim(self, urgency: int, safe: Collection[LiveRequest]) -> LiveRequest | None:
        """Who would stand aside for a request of this urgency."""
        return choose_victim([live for live in self._state.running if live.urgency > urgency and live not in safe])

    def _resume_paused(self, rank: int, safe: Collection[LiveRequest]) -> None:
        """Let the paused of this urgency and above go on, the most urgent first, as far as places can be had."""
        state = self._state
        for live in sorted((live for live in state.paused if live.urgency <= rank), key=arrival_key):
            victim = None if self._num_free > 0 else self._victim(live.urgency, safe)
            if self._num_free <= 0 and victim is None:
                return
            state.resume(live)
            if victim is not None:
                state.pause(victim)

    def _can_have_place(self, live: LiveRequest, safe: Collection[LiveRequest]) -> bool:
        """Parked requests that come before this one keep their places: they were next, and will be soon."""
        rank = live.rank  # those who are safe run, too
        num_yielding = sum([other.urgency > rank for other in self._state.running]) - sum(other.urgency > rank for other in safe)
        num_pausable = min(len(self._state.running), self._limits.max_num_paused - len(self._state.paused))
        num_possible = self._num_free + num_yielding - self._state.reservations.num_places(rank, num_pausable)
        return num_possible > 0 and num_possible > self._state.followers.num_at_least_as_urgent(rank)

    def _vacate(self, victim: LiveRequest, urgency: int, now: float) -> bool:
        """Free a place. When no more requests may be paused, the least urgent pays with its KV; False while that is copied."""
        state = self._state
        if len(state.paused) >= self._limits.max_num_paused:
            loser = choose_loser([victim, *[live for live in state.paused if live.urgency > urgency]], self._limits)
            assert loser is not None, "the victim is a candidate"
            if not state.departing.may_leave(loser, urgency, state.running):
                return False
            state.preempt(loser, now)
            if loser is victim:
                return True
        state.pause(victim)
        return True

    # -- cells

    def _start(self, live: LiveRequest, safe: Collection[LiveRequest], now: float) -> bool:
        """Start, park or set aside the head of the queue, if it can have a place and cells."""
        state, ledger = self._state, self._ledger
        if live.blocked_version == ledger.version or not self._can_have_place(live, safe):
            return False
        if state.restorer.must_wait(live, now):
            state.step_aside(live)
            return True
        while True:
            match, restored = self._reusable(live, now)
            num_matched = match.num_tokens if match else 0
            if live.can_reuse and ledger.has_cache and ledger.can_trim:
                leader = find_leader(live, num_matched, self._leaders_for(live))
                if leader:
                    state.park(live, *leader)
                    self._promised = None  # the leader may be more urgent now
                    return True
            lack = self._lack(live, num_matched, ledger.num_available(match))
            if lack <= 0:
                break
            if not self._preempt_for(live, lack, safe, now):
                is_lasting = not state.departing.is_copying and not self._num_held_back(live.rank)
                is_final = is_lasting and not state.faults.slack
                live.blocked_version = ledger.version if is_final else -1
                return False
        if self._num_free <= 0:
            victim, version = self._victim(live.rank, safe), ledger.version
            assert victim is not None, "it was counted on"
            if not self._vacate(victim, live.rank, now):
                return False
            if ledger.version != version:  # a preempted victim may have held the very cells that were matched
                match, restored = self._reusable(live, now)
        state.start(live, match, now, restored)
        if self._promised is not None:
            self._promised[live.urgency] += admission.promised_to(live, self._limits)
        return True

    def _leaders_for(self, live: LiveRequest) -> list[LiveRequest]:
        """Whose prefix may be waited for: not for the end of a side chunk, which is long, by somebody more urgent."""
        beside = self._state.side.live
        if beside is None or beside.rank <= live.rank:
            return self._state.running
        return [other for other in self._state.running if other is not beside]

    def _reusable(self, live: LiveRequest, now: float) -> tuple[Match | None, Sequence[Part]]:
        """What a request need not compute: the prefix that the device has, and what can be loaded beyond it."""
        match = self._ledger.match(live.tokens, live.request.cache_salt) if live.can_reuse else None
        restored = self._state.restorer.choose(live, match.num_tokens if match else 0, now)
        if restored and restored[0].begin == 0:
            match = None  # sequences that cannot be cut: the longer one replaces the shorter
        return match, restored

    def _lack(self, live: LiveRequest, num_matched: int, num_available: int) -> int:
        """Cells that are missing for a start; <= 0 = it can start. What is promised to less urgent requests does not count."""
        state = self._state
        if not state.num_holders:
            return 0
        need = admission.num_needed(live, num_matched, self._limits)
        lack = need + self._num_held_back(live.rank) + state.faults.slack - num_available
        if state.most_promised is not None and lack + state.most_promised <= 0:
            return 0  # whatever is promised to whom
        return lack + sum(self._promised_by_urgency()[: live.rank + 1])

    def _num_held_back(self, rank: int) -> int:
        """Cells that a start of this rank must leave: to more urgent requests that are likely to come, to tiers that are owed."""
        return self._state.reservations.num_tokens(rank) + self._turns.num_claimed(rank)

    def _promised_by_urgency(self) -> list[int]:
        """Cells promised to everybody who holds a sequence, by urgency. Kept between the starts of one step."""
        if self._promised is None:
            self._promised = admission.promised_by_urgency(self._state.holders, self._limits)
            self._state.most_promised = sum(self._promised)
        return self._promised

    def _preempt_for(self, live: LiveRequest, lack: int, safe: Collection[LiveRequest], now: float) -> bool:
        """Preempt less urgent requests, the least urgent first, for `lack` cells. False, and nobody, if that cannot be (yet)."""
        victims: list[LiveRequest] = []
        for other in sorted(may_lose(self._state.holders, live, self._limits), key=arrival_key, reverse=True):
            if lack <= 0 or other.urgency <= live.rank:
                break
            assert other.sequence is not None, "holders hold a sequence"
            num_cells = self._ledger.num_reclaimable(other.sequence)
            if other not in safe and num_cells > 0:
                victims.append(other)
                lack -= num_cells
        state = self._state
        if lack > 0 or not all(state.departing.may_leave(victim, live.rank, state.running) for victim in victims):
            return False
        for victim in victims:
            self._state.preempt(victim, now)
        self._promised = None
        return True
