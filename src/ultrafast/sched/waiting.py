"""Requests that have no sequence yet, in the order of the ordering policy. O(log n) each; nothing sorts the queue."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from ultrafast.core.tiers import ServiceTier
from ultrafast.sched.live import LiveRequest
from ultrafast.sched.ordering import OrderKey, order_key

_MIN_GARBAGE = 64


class WaitingQueue:
    """One lane per tier, the most urgent first."""

    def __init__(self) -> None:
        self._lanes = tuple(_Lane() for _ in ServiceTier)
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def nums(self) -> list[int]:
        """Waiting requests of each tier, by rank."""
        return [len(lane.members) for lane in self._lanes]

    def num_of(self, rank: int) -> int:
        """Waiting requests of one tier."""
        return len(self._lanes[rank].members)

    def num_tokens_of(self, rank: int) -> int:
        """Prompt and output tokens of the waiting requests of one tier."""
        return self._lanes[rank].num_tokens

    def push(self, live: LiveRequest) -> None:
        self._lanes[live.rank].push(live)
        self._num += 1

    def head(self) -> LiveRequest | None:
        """The request to be served next; it stays in the queue."""
        if not self._num:
            return None
        for lane in self._lanes:
            if (live := lane.head()) is not None:
                return live
        return None

    def head_of(self, rank: int) -> LiveRequest | None:
        """The request of one tier to be served next; it stays in the queue."""
        return self._lanes[rank].head()

    def pop(self, live: LiveRequest) -> None:
        """Take out the head of its tier. It may be pushed again later (parked, preempted)."""
        self._lanes[live.rank].pop(live)
        self._num -= 1

    def discard(self, live: LiveRequest) -> bool:
        """Take out a request that ends, wherever it stands; returns whether it was there. It must not be pushed again."""
        was_there = self._lanes[live.rank].discard(live)
        self._num -= was_there
        return was_there


class _Lane:
    """A heap with lazy removal: a removed request leaves its entry behind, which is skipped, and swept when most are such."""

    def __init__(self) -> None:
        self.heap: list[tuple[OrderKey, LiveRequest]] = []
        self.members: set[LiveRequest] = set()
        self.num_tokens = 0

    def push(self, live: LiveRequest) -> None:
        assert live not in self.members, f"{live.request_id} already waits"
        self.members.add(live)
        self.num_tokens += live.num_tokens
        heappush(self.heap, (order_key(live), live))

    def head(self) -> LiveRequest | None:
        while self.heap and self.heap[0][1] not in self.members:
            heappop(self.heap)
        return self.heap[0][1] if self.heap else None

    def pop(self, live: LiveRequest) -> None:
        assert self.head() is live, f"{live.request_id} is not the head of its tier"
        heappop(self.heap)
        self._remove(live)

    def discard(self, live: LiveRequest) -> bool:
        """Whether it was there."""
        is_member = live in self.members
        if is_member:
            self._remove(live)
        if len(self.heap) > 2 * len(self.members) + _MIN_GARBAGE:
            self.heap = [entry for entry in self.heap if entry[1] in self.members]
            heapify(self.heap)
        return is_member

    def _remove(self, live: LiveRequest) -> None:
        self.members.remove(live)
        self.num_tokens -= live.num_tokens
