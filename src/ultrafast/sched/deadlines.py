"""Two deadlines, which never meet: of the queue (waited as long as it may) and of execution (had its place as long as it may).

O(log n) each; whom a deadline no longer concerns is skipped when its time comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from math import inf

from ultrafast.core.request import RequestState
from ultrafast.sched.live import LiveRequest


class _Deadlines:
    """A heap of (deadline, order, id).

    Ids only: most requests are over long before their deadline, and would be kept with their prompts until then.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str]] = []

    def push(self, live: LiveRequest, at_s: float) -> None:
        heappush(self._heap, (at_s, live.order, live.request_id))

    @property
    def next_s(self) -> float:
        """Before that, none of them passes."""
        return self._heap[0][0] if self._heap else inf

    def pop_due(self, lives: Mapping[str, LiveRequest], now: float) -> Iterator[LiveRequest]:
        """Take out and yield those whose deadline has passed and who have not ended."""
        while self._heap and self._heap[0][0] <= now:
            _, order, request_id = heappop(self._heap)
            live = lives.get(request_id)
            if live is not None and live.order == order:
                yield live


class QueueDeadlines(_Deadlines):
    """Of those who wait for their first place. One that was preempted has had its place: it no longer expires."""

    def pop_due(self, lives: Mapping[str, LiveRequest], now: float) -> Iterator[LiveRequest]:
        """Take out and yield those whose deadline has passed and who still wait for their first place."""
        return (live for live in super().pop_due(lives, now) if live.state is RequestState.WAITING)


class ExecutionDeadlines(_Deadlines):
    """Of those who have had their place."""

    def placed(self, live: LiveRequest, limit_s: float | None, now: float) -> None:
        """A request got its first place; `limit_s` is its tier's limit, seconds, which it may have shortened."""
        own_s, placed_s = live.request.slo.execution_ttl_s, live.request.placed_s
        limits_s = [limit for limit in (limit_s, own_s) if limit is not None]
        if limits_s and not live.request.is_internal:
            self.push(live, (now if placed_s is None else placed_s) + min(limits_s))
