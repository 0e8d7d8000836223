"""Queue deadlines: requests that waited as long as they may. O(log n) each; who got a place is skipped when its time comes."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from ultrafast.core.request import RequestState
from ultrafast.sched.live import LiveRequest


class QueueDeadlines:
    """A heap of (deadline, request). One that was preempted has had its place: it no longer expires."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, LiveRequest]] = []

    def push(self, live: LiveRequest, at_s: float) -> None:
        heappush(self._heap, (at_s, live.order, live))

    def pop_due(self, now: float) -> Iterator[LiveRequest]:
        """Take out and yield those whose deadline has passed and who still wait for their first place."""
        while self._heap and self._heap[0][0] <= now:
            live = heappop(self._heap)[2]
            if live.state is RequestState.WAITING:
                yield live
