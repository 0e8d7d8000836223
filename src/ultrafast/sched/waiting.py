"""Requests that have no sequence yet, in the order of the ordering policy. O(log n) each; nothing sorts the queue."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from ultrafast.sched.live import LiveRequest
from ultrafast.sched.ordering import OrderKey, order_key

_MIN_GARBAGE = 64


class WaitingQueue:
    """A heap with lazy removal: a removed request leaves its entry behind, which is skipped, and swept when most are such."""

    def __init__(self) -> None:
        self._heap: list[tuple[OrderKey, LiveRequest]] = []
        self._members: set[LiveRequest] = set()

    def __len__(self) -> int:
        return len(self._members)

    def push(self, live: LiveRequest) -> None:
        assert live not in self._members, f"{live.request_id} already waits"
        self._members.add(live)
        heappush(self._heap, (order_key(live), live))

    def head(self) -> LiveRequest | None:
        """The request to be served next; it stays in the queue."""
        while self._heap and self._heap[0][1] not in self._members:
            heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> LiveRequest:
        """Take the head out. It may be pushed again later (parked, preempted)."""
        live = self.head()
        assert live is not None, "the queue is empty"
        heappop(self._heap)
        self._members.remove(live)
        return live

    def discard(self, live: LiveRequest) -> None:
        """Take out a request that ends, wherever it stands. It must not be pushed again."""
        self._members.discard(live)
        if len(self._heap) > 2 * len(self._members) + _MIN_GARBAGE:
            self._heap = [entry for entry in self._heap if entry[1] in self._members]
            heapify(self._heap)
