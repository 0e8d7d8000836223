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
        """Whether a newcomer would start at the next step border if this tier served it: nobody is ahead of it, and it has room."""
        num_ahead = sum([self._state.waiting.num_of(other) for other in range(rank + 1)])
        return not num_ahead and self.num_places(rank) > 0 and self.has_cells(live, rank)

    def num_startable(self, rank: int, newcomer: LiveRequest | None = None) -> int:
        """How many of a tier's queue, with a newcomer at its end, could start at once.

        O(1) while there are no places; else O(running and paused), and a look into the cache for whoever is first.
        """
        state = self._state
        num_places = self.num_places(rank) + state.followers.num_of(rank)  # the parked of this tier are in its queue
        num_places -= sum([state.waiting.num_of(other) for other in range(rank)])
        if num_places <= 0:
            return 0
        head = state.waiting.head()
        if head is not None and head.rank <= rank:
            if not self.has_cells(head, head.rank):
                return 0
        elif newcomer is not None and not self.has_cells(newcomer, rank):
            return min(num_places, state.num_queued(rank))
        num, num_tokens = state.num_queued(rank), state.num_queued_tokens(rank)
        if newcomer is not None:
            num, num_tokens = num + 1, num_tokens + newcomer.num_tokens
        need = num_tokens + num * self._limits.reserve_tokens
        num_cells = self._num_cells(rank)
        for other in range(rank):
            num_cells -= state.waiting.num_tokens_of(other) + state.waiting.num_of(other) * self._limits.reserve_tokens
        if need <= num_cells:
            return num_places
        num_fitting = max(0, num_cells) * num // need if need else num
        return min(num_places, max(num_fitting, int(head is None or head.rank >= rank)))  # the first one fits: it was asked

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
        state = self._state
        if live.blocked_version == self._ledger.version:
            return False
        if not state.num_holders:
            return True  # alone it always may
        num_cells = self._num_cells(rank)
        need = admission.num_needed(live, 0, self._limits)
        if need <= num_cells:
            return True
        if not live.can_reuse:
            return False
        match = self._ledger.match(live.tokens, live.request.cache_salt)
        num_matched = match.num_tokens if match else 0
        num_evictable = self._ledger.num_available(None) - self._ledger.num_available(match)  # in the match: not to be had
        leader = find_leader(live, num_matched, state.running) if self._ledger.has_cache and self._ledger.can_trim else None
        num_shared = num_matched if leader is None else leader[1]
        return need - num_shared <= num_cells - num_evictable

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
