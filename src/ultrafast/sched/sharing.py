"""In-flight sharing: a request whose prefix is being computed right now waits for it instead of computing it again.

    leader    [ computed ......|being computed ...........]          running, prefilling
    follower  [ in the tree ...|would compute the same ...|its own]  parked until the leader has passed `until`
                                                          ^ until

The wait always ends: when the leader has computed that far, or when it ends in any way, the follower is released and goes its
own way. A leader always advances, because the first due of the prefills always gets a share and a leader inherits urgency.
"""

from __future__ import annotations

from dataclasses import dataclass

from ultrafast.kv.prefix import common_prefix
from ultrafast.sched.live import LiveRequest

MIN_SHARED_TOKENS = 8
"""Fewer tokens than this are computed twice rather than waited for."""


@dataclass(frozen=True, slots=True)
class _Parked:
    live: LiveRequest
    until: int


class Followers:
    """Parked requests by the leader they wait for."""

    def __init__(self) -> None:
        self._by_leader: dict[LiveRequest, list[_Parked]] = {}
        self._leader_of: dict[LiveRequest, LiveRequest] = {}

    def __len__(self) -> int:
        return len(self._leader_of)

    def num_of(self, rank: int) -> int:
        """Parked requests of one tier. O(parked)."""
        return sum(live.rank == rank for live in self._leader_of)

    def num_tokens_of(self, rank: int) -> int:
        """Prompt and output tokens of the parked of one tier. O(parked)."""
        return sum(live.num_tokens for live in self._leader_of if live.rank == rank)

    def num_at_least_as_urgent(self, rank: int) -> int:
        """Parked requests that hold a place before one of this rank. O(parked)."""
        return sum(live.rank <= rank for live in self._leader_of)

    def park(self, live: LiveRequest, leader: LiveRequest, until: int) -> None:
        self._by_leader.setdefault(leader, []).append(_Parked(live, until))
        self._leader_of[live] = leader
        self._set_rank(leader)

    def first_until(self, leader: LiveRequest) -> int | None:
        """How many tokens the leader must have computed for the first of those that wait for it; None = nobody does."""
        return min([item.until for item in self._by_leader.get(leader, [])], default=None)

    def release_ready(self, leader: LiveRequest) -> list[LiveRequest]:
        """Take out those whose shared prefix the leader has computed."""
        parked = self._by_leader.get(leader)
        if not parked or all(item.until > leader.num_computed for item in parked):
            return []
        return self._release(leader, [item for item in parked if item.until <= leader.num_computed])

    def release_all(self, leader: LiveRequest) -> list[LiveRequest]:
        """Take out all that wait for a leader that computes no longer."""
        return self._release(leader, self._by_leader.get(leader, []))

    def discard(self, live: LiveRequest) -> None:
        """Take out a follower that ends."""
        leader = self._leader_of.get(live)
        if leader is not None:
            self._release(leader, [item for item in self._by_leader[leader] if item.live is live])

    def _release(self, leader: LiveRequest, items: list[_Parked]) -> list[LiveRequest]:
        released = [item.live for item in items]
        for live in released:
            del self._leader_of[live]
        rest = [item for item in self._by_leader.pop(leader, []) if item.live not in released]
        if rest:
            self._by_leader[leader] = rest
        self._set_rank(leader)
        return released

    def _set_rank(self, leader: LiveRequest) -> None:
        leader.follow(min((item.live.rank for item in self._by_leader.get(leader, [])), default=None))


def find_leader(live: LiveRequest, num_matched: int, running: list[LiveRequest]) -> tuple[LiveRequest, int] | None:
    """Find the running prefill that will compute most of what `live` still lacks beyond `num_matched` tokens.

    `num_matched` is what the prefix tree has, so anything beyond it is not computed yet.

    Returns:
        (leader, until): worth waiting for until it has computed that many tokens; None when there is none.
        O(running), plus O(prompt) for each one that may share more than the best so far.
    """
    best: tuple[LiveRequest, int] | None = None
    worth = num_matched + MIN_SHARED_TOKENS
    tokens, namespace = live.tokens, live.namespace
    limit = len(tokens) - 1
    for other in running:
        if worth > limit:
            break
        theirs = other.tokens
        if len(theirs) < worth or theirs[worth - 1] != tokens[worth - 1]:
            continue
        if len(theirs) - other.num_computed == 1 or other.namespace != namespace:
            continue
        num_common = common_prefix(tokens, 0, theirs, 0, limit)
        if num_common >= worth:
            best, worth = (other, num_common), num_common + 1
    return best
