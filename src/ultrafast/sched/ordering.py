"""The ordering policy: who is served first, and who gives way.

More urgent tiers first; inside a tier those that were preempted (they have already waited once), then whose first token is due
first: arrival plus objective, its own or the tier's. Where all have the same objective that is the order of arrival. Nobody waits
for ever inside a tier: whoever comes after a deadline has a later one. That a less urgent tier does not starve is the business of
`shares.py` and `turns.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter

from ultrafast.core.request import RequestState
from ultrafast.sched.live import LiveRequest

OrderKey = tuple[bool, float, int]


def order_key(live: LiveRequest) -> OrderKey:
    """The order inside a tier; smaller = served earlier. Constant while the request waits."""
    return (live.state is not RequestState.PREEMPTED, live.arrival_s + live.ttft_s, live.order)


arrival_key: Callable[[LiveRequest], tuple[int, tuple[float, int]]] = attrgetter("urgency", "arrival")
"""The order among requests that hold a sequence: urgency, then arrival; blind to past preemptions."""

_arrival: Callable[[LiveRequest], tuple[float, int]] = attrgetter("arrival")

turn_key: Callable[[LiveRequest], tuple[float, tuple[float, int]]] = attrgetter("last_run_s", "arrival")
"""Whose turn it is inside a tier when not all can be in a step: whoever was in one least recently."""


def choose_next_turn(lives: list[LiveRequest]) -> LiveRequest | None:
    """The first by `turn_key`; times are compared first, since hundreds are asked of and few were in a step equally long ago."""
    if not lives:
        return None
    times_s = [live.last_run_s for live in lives]
    first_s = min(times_s)
    return min([live for live, time_s in zip(lives, times_s, strict=True) if time_s == first_s], key=_arrival)


def is_turn_of(lives: list[LiveRequest], others: list[LiveRequest]) -> bool:
    """Whether one of `lives` is to be in the next step before any of `others`: none of them was since all of the others were.

    One of them serves for all: who of several prefills is in a step is another policy, and the one that is in none waits for the
    others of its kind, not for the decodes.
    """
    if not lives or not others:
        return bool(lives)
    return max([live.last_run_s for live in lives]) < min([live.last_run_s for live in others])


def choose_victim(candidates: Iterable[LiveRequest]) -> LiveRequest | None:
    """Who gives way (a place, or KV): the least urgent, and of those the youngest arrival. None when there is no candidate."""
    return max(candidates, key=arrival_key, default=None)
