"""The ordering policy: who is served first, and who gives way.

More urgent tiers first; inside a tier those that were preempted (they have already waited once), then by arrival.
Starvation, said aloud: while a more urgent tier fills the machine, a less urgent one waits without bound. Inside a tier the
wait is bounded, because nothing overtakes an earlier arrival.
"""

from __future__ import annotations

from collections.abc import Iterable

from ultrafast.core.request import RequestState
from ultrafast.sched.live import LiveRequest

OrderKey = tuple[int, bool, float, int]


def order_key(live: LiveRequest) -> OrderKey:
    """Smaller = served earlier. Constant while the request waits."""
    return (live.rank, live.state is not RequestState.PREEMPTED, live.request.arrival_s, live.order)


def arrival_key(live: LiveRequest) -> tuple[int, float, int]:
    """The order among running requests: like `order_key`, blind to past preemptions."""
    return (live.rank, live.request.arrival_s, live.order)


def choose_victim(candidates: Iterable[LiveRequest]) -> LiveRequest | None:
    """Who is preempted when KV runs out: the least urgent tier's youngest arrival. None when there is no candidate."""
    return max(candidates, key=arrival_key, default=None)
