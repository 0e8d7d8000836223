"""The ordering policy: who is served first, and who gives way.

More urgent tiers first; inside a tier those that were preempted (they have already waited once), then by arrival. That a less
urgent tier does not starve is the business of `shares.py`; inside a tier nothing overtakes an earlier arrival.
"""

from __future__ import annotations

from collections.abc import Iterable

from ultrafast.core.request import RequestState
from ultrafast.sched.live import LiveRequest

OrderKey = tuple[bool, float, int]


def order_key(live: LiveRequest) -> OrderKey:
    """The order inside a tier; smaller = served earlier. Constant while the request waits."""
    return (live.state is not RequestState.PREEMPTED, live.arrival_s, live.order)


def arrival_key(live: LiveRequest) -> tuple[int, float, int]:
    """The order among requests that hold a sequence: urgency, then arrival; blind to past preemptions."""
    return (live.urgency, live.arrival_s, live.order)


def turn_key(live: LiveRequest) -> tuple[float, float, int]:
    """Whose turn it is inside a tier when not all can be in a step: whoever was in one least recently."""
    return (live.last_run_s, live.arrival_s, live.order)


def choose_victim(candidates: Iterable[LiveRequest]) -> LiveRequest | None:
    """Who gives way (a place, or KV): the least urgent, and of those the youngest arrival. None when there is no candidate."""
    return max(candidates, key=arrival_key, default=None)
