"""The ordering policy: who is served first, and who gives way.

More urgent tiers first; inside a tier those that were preempted (they have already waited once), then by arrival. That a less
urgent tier does not starve is the business of `shares.py`; inside a tier nothing overtakes an earlier arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter

from ultrafast.core.request import RequestState
from ultrafast.sched.live import LiveRequest

OrderKey = tuple[bool, float, int]


def order_key(live: LiveRequest) -> OrderKey:
    """The order inside a tier; smaller = served earlier. Constant while the request waits."""
    return (live.state is not RequestState.PREEMPTED, live.arrival_s, live.order)


arrival_key: Callable[[LiveRequest], tuple[int, tuple[float, int]]] = attrgetter("urgency", "arrival")
"""The order among requests that hold a sequence: urgency, then arrival; blind to past preemptions."""

turn_key: Callable[[LiveRequest], tuple[float, tuple[float, int]]] = attrgetter("last_run_s", "arrival")
"""Whose turn it is inside a tier when not all can be in a step: whoever was in one least recently."""


def choose_victim(candidates: Iterable[LiveRequest]) -> LiveRequest | None:
    """Who gives way (a place, or KV): the least urgent, and of those the youngest arrival. None when there is no candidate."""
    return max(candidates, key=arrival_key, default=None)
