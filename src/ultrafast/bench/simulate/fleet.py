"""Simulated time: arrivals, clients that leave, and the step ends of all replicas, in the order in which they happen."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

from ultrafast.bench.simulate.load import SimRequest
from ultrafast.bench.simulate.replica import Replica
from ultrafast.bench.simulate.routing import Router

Watch = Callable[[Replica, float], None]


class Fleet:
    """Replicas behind a router.

    Args:
        on_routed: told of each arrival and where it went, before the replica sees it.
        watch: called after every turn of a replica (checks of invariants, progress); None = nobody looks.

    Attributes:
        now: simulated seconds.
        last_due_s: the last arrival so far.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        router: Router,
        on_routed: Callable[[SimRequest, Replica], None],
        watch: Watch | None = None,
    ) -> None:
        self._replicas = replicas
        self._router = router
        self._on_routed = on_routed
        self._watch = watch
        self._ends: list[tuple[float, int]] = []
        self._leaving: list[tuple[float, int, int]] = []
        self.now = 0.0
        self.last_due_s = 0.0
        self.busy_in_window_s = [0.0] * len(replicas)

    def run(self, requests: Iterable[SimRequest]) -> None:
        """Serve all of them to their end. They must come in order of arrival."""
        for request in requests:
            self._run_until(request.due_s)
            self.now = self.last_due_s = request.due_s
            replica = self._router.choose(request, self._replicas, self.now)
            self._on_routed(request, replica)
            is_due = replica.submit(request)
            if request.cancel_after_s is not None:
                heapq.heappush(self._leaving, (self.now + request.cancel_after_s, request.index, replica.number))
            if is_due:
                self._turn(replica)
        self.busy_in_window_s = [self._busy_until_now(replica) for replica in self._replicas]
        self._run_until(float("inf"))

    def _run_until(self, limit_s: float) -> None:
        """All that happens before this moment, or at it."""
        while True:
            end_s = self._ends[0][0] if self._ends else float("inf")
            leave_s = self._leaving[0][0] if self._leaving else float("inf")
            at_s = min(end_s, leave_s)
            if at_s > limit_s or at_s == float("inf"):
                return
            self.now = at_s
            if leave_s <= end_s:
                _, index, number = heapq.heappop(self._leaving)
                replica = self._replicas[number]
                replica.cancel(str(index))
                if replica.is_listening:
                    self._turn(replica)
            else:
                _, number = heapq.heappop(self._ends)
                replica = self._replicas[number]
                if not replica.is_idle and replica.step_end_s == end_s:  # else that step was broken off
                    self._turn(replica)

    def _turn(self, replica: Replica) -> None:
        end_s = replica.turn(self.now)
        if end_s is not None:
            heapq.heappush(self._ends, (end_s, replica.number))
        if self._watch is not None:
            self._watch(replica, self.now)

    def _busy_until_now(self, replica: Replica) -> float:
        return replica.busy_until_s(self.now)
