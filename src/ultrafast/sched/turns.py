"""Turns: the place and the cells for a tier that is owed a step (see `shares`), whoever has them.

    a member runs                      -> it keeps its place in this step
    a member is paused                 -> it goes on, and a running one is paused for it: as many are paused as before
    all wait, there are cells          -> the first of them starts, and a running one is paused for it. When no more may be
                                          paused, a paused one of a tier that has another sequence is preempted for that
    all wait, there are no cells       -> starts of other tiers leave free what it needs, until it has it

So no state of places and paused slots keeps a tier out, as long as as many may be paused as there are other tiers. With fewer it
may have to wait until a request of another tier ends; the tier that has waited longest is then the first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ultrafast.kv.index import Part
from ultrafast.kv.tree import Match
from ultrafast.sched import admission
from ultrafast.sched.kept import choose_loser, is_small
from ultrafast.sched.live import LiveRequest
from ultrafast.sched.ordering import choose_victim, turn_key
from ultrafast.sched.state import SchedulerState

Reusable = tuple[Match | None, Sequence[Part]]


class Turns:
    """Gives each tier that is owed a step the place for it.

    Args:
        reusable: what a request need not compute, at a time in seconds.
    """

    def __init__(self, state: SchedulerState, reusable: Callable[[LiveRequest, float], Reusable]) -> None:
        self._state = state
        self._limits = state.limits
        self._reusable = reusable
        self._claims: dict[int, int] = {}

    def give(self, due_ranks: Collection[int], now: float) -> set[LiveRequest]:
        """Return those who are in the next step whatever others need: one of each tier that is due and can have it."""
        self._claims.clear()
        safe: set[LiveRequest] = set()
        for rank in due_ranks:
            live = self._hold(rank, safe, now)
            if live is not None:
                safe.add(live)
        return safe

    def num_claimed(self, rank: int) -> int:
        """Cells that a start of this rank must leave to other tiers that are owed one."""
        return sum([num for owed, num in self._claims.items() if owed != rank]) if self._claims else 0

    def _hold(self, rank: int, safe: Collection[LiveRequest], now: float) -> LiveRequest | None:
        """Find the member of a tier that is owed a step; if none runs, one gets a place, whoever has to stand aside."""
        state = self._state
        running = [live for live in state.running if live.rank == rank]
        if running:
            return min(running, key=turn_key)
        victim = None
        if len(state.running) >= self._limits.max_num_running:
            victim = choose_victim([live for live in state.running if live not in safe])
            if victim is None:
                return None
        paused = [live for live in state.paused if live.rank == rank]
        if not paused:
            return self._start(rank, victim, now)
        live = min(paused, key=turn_key)
        state.resume(live)
        if victim is not None:
            state.pause(victim)
        return live

    def _start(self, rank: int, victim: LiveRequest | None, now: float) -> LiveRequest | None:
        """The first of the tier's queue; `victim` stands aside for it. None while it must wait: for disk, a copy, or cells."""
        state = self._state
        live = state.waiting.head_of(rank)
        if live is None:
            return None
        if state.restorer.must_wait(live, now):
            state.step_aside(live)
            return None
        match, restored = self._reusable(live, now)
        need = admission.num_needed(live, match.num_tokens if match else 0, self._limits)
        if need > state.ledger.num_available(match) - admission.num_promised(state.holders, self._limits) - state.faults.slack:
            if is_small(need, self._limits):
                self._claims[rank] = need
            return None
        if victim is not None:
            version = state.ledger.version
            if not self._make_slot(rank, now):
                return None
            state.pause(victim)
            if state.ledger.version != version:  # who was preempted may have held the very cells that were matched
                match, restored = self._reusable(live, now)
        state.start(live, match, now, restored)
        live.is_kept = True
        return live

    def _make_slot(self, rank: int, now: float) -> bool:
        """Whether one more may be paused, after a paused one has been preempted if need be. No tier loses its only sequence."""
        state = self._state
        if len(state.paused) < self._limits.max_num_paused:
            return True
        loser = choose_loser([live for live in state.paused if state.num_holding[live.rank] > 1], self._limits)
        if loser is None or not state.departing.may_leave(loser, rank, state.running):
            return False
        state.preempt(loser, now)
        return True
