"""Room: what could start at once in a tier, judged by places and by KV cells, as `places` would give them away.

    places   free, or held by less urgent requests, which give way
             - held back for more urgent ones that are likely to come - of those who wait for a prefix that is being computed
    cells    free, evictable, or held by less urgent requests
             - promised to those at least as urgent - held back

Whoever lacks one of the two waits, and so does everybody behind it: nobody overtakes the head of the queue. What a request shares
with the cache is looked up for the head and for the newcomer alone; for those between them the whole prompt counts.
"""

from __future__ import annotations

from ultrafast.sched import admission
from ultrafast.sched.live import LiveRequest
from ultrafast.sched.sharing import find_leader
from ultrafast.sched.state import SchedulerState


class Room:
    """Answers from the state of one scheduler; changes nothing."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._limits = state.limits
        self._ledger = state.ledger

    def can_start(self, live: LiveRequest, rank: int) -> bool:
        """Whether a newcomer would start at the next step border if this tier served it: it has room, and nobody is ahead."""
        num_ahead = sum([self._state.waiting.num_of(other) for other in range(rank + 1)])
        return not num_ahead and self.num_places(rank) > 0 and self.has_cells(live, rank)

    def num_startable(self, rank: int, newcomer: LiveRequest | None = None) -> int:
        """How many of a tier's queue, with a newcomer at its end, could start at once.

        O(running and paused); where there are places and cells are short, a look into the cache for head and newcomer, too.
        """
        state = self._state
        num_places = self.num_places(rank) + state.followers.num_of(rank)  # the parked of this tier are in its queue
        num_places -= sum([state.waiting.num_of(other) for other in range(rank)])
        if num_places <= 0:
            return 0
        num_queued = state.num_queued(rank)
        head = state.waiting.head()
        if head is None or head.rank > rank:
            if newcomer is not None and not self.has_cells(newcomer, rank):
                return min(num_places, num_queued)  # parked or aside, they come before it
            head = None
        elif not self.has_cells(head, head.rank):
            return 0
        fitting = self._num_fitting(rank, head if head is not None and head.rank == rank else None, newcomer)
        if fitting is None:
            return num_places
        return min(num_places, max(fitting, int(head is None and not num_queued)))  # nobody but the newcomer, which has cells

    def _num_fitting(self, rank: int, head: LiveRequest | None, newcomer: LiveRequest | None) -> int | None:
        """How many of a tier's queue there are cells for, in its order; None = for all, the newcomer at its end too.

        `head`: the first of it, which was found to have its cells.
        """
        state = self._state
        num_cells = self._num_cells(rank)
        for other in range(rank):
            num_cells -= self._most_needed(state.waiting.num_of(other), state.waiting.num_tokens_of(other))
        num_rest, num_tokens, need, num_first = state.num_queued(rank), state.num_queued_tokens(rank), 0, 0
        if head is not None:
            num_rest, num_tokens, num_first = num_rest - 1, num_tokens - head.num_tokens, 1
            need = self._need(head, 0)
        rest = self._most_needed(num_rest, num_tokens)
        need_last = self._need(newcomer, num_cells - need - rest) if newcomer is not None else 0
        if need + rest + need_last <= num_cells:
            return None
        return num_first + (min(num_rest, max(0, num_cells - need) * num_rest // rest) if rest else 0)

    def num_places(self, rank: int) -> int:
        """Places that nobody waits for: free ones, and those of less urgent requests. O(running)."""
        state = self._state
        running = state.running
        num_free = self._limits.max_num_running - len(running) + sum([live.urgency > rank for live in running])
        num_pausable = min(len(running), self._limits.max_num_paused - len(state.paused))
        num_kept = state.reservations.num_places(rank, num_pausable) + state.followers.num_at_least_as_urgent(rank)
        return max(0, num_free - num_kept)

    def has_cells(self, live: LiveRequest, rank: int) -> bool:
        """Whether one that waits, or comes, would find its cells as the next to start."""
        if live.blocked_version == self._ledger.version:
            return False
        if not self._state.num_holders:
            return True  # alone it always may
        num_cells = self._num_cells(rank)
        return self._need(live, num_cells) <= num_cells

    def _need(self, live: LiveRequest, num_cells: int) -> int:
        """Cells that a request needs for its start. Where there are enough even without, what it shares is not looked up."""
        need = admission.num_needed(live, 0, self._limits)
        if need <= num_cells or not live.can_reuse:
            return need
        ledger = self._ledger
        match = ledger.match(live.tokens, live.request.cache_salt)
        num_matched = match.num_tokens if match else 0
        num_evictable = ledger.num_available(None) - ledger.num_available(match)  # in the match: not to be had any more
        leader = find_leader(live, num_matched, self._state.running) if ledger.has_cache and ledger.can_trim else None
        return need + num_evictable - (num_matched if leader is None else leader[1])

    def _most_needed(self, num: int, num_tokens: int) -> int:
        """Cells that so many requests with so many tokens need if they share nothing."""
        return num_tokens + num * self._limits.reserve_tokens

    def _num_cells(self, rank: int) -> int:
        """Cells for starts of a tier."""
        state = self._state
        num_cells = self._ledger.num_available(None) - state.reservations.num_tokens(rank) - state.faults.slack
        for live in state.holders:
            if live.urgency <= rank:
                num_cells -= admission.promised_to(live, self._limits)
            elif live.sequence is not None:
                num_cells += self._ledger.num_reclaimable(live.sequence)
        return num_cells
