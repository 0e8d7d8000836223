"""Who loses KV when some is needed: the least urgent, but not what a starved tier has just been given.

    pool  |=========== the urgent ===========|flex|    at most 1/KEPT_SHARE each: one request of each tier that is owed work

A request that got its sequence on a turn that its tier was owed (`turns`) keeps its KV until it ends. Else more urgent work would
take the cells back in the next step, what was computed on the turn would be lost, and the tier would get its share of the time
and no further. Only one request of a tier is so kept, only while it is small, and never against the only other one there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.live import LiveRequest
from ultrafast.sched.ordering import choose_victim

KEPT_SHARE = 8
"""A kept request may hold 1/KEPT_SHARE of the pool. It is what urgent work can lose to a tier, so it is not more."""


def is_small(num_tokens: int, limits: SchedulerLimits) -> bool:
    """Whether so many cells are what a tier may keep."""
    return num_tokens * KEPT_SHARE <= limits.kv_capacity_tokens


def is_kept(live: LiveRequest, limits: SchedulerLimits) -> bool:
    """Whether others go before it when somebody must give cells back."""
    return live.is_kept and is_small(len(live.tokens), limits)


def may_lose(holders: Sequence[LiveRequest], live: LiveRequest, limits: SchedulerLimits) -> list[LiveRequest]:
    """Those besides `live` who may lose KV for it. Who is kept does where there is nobody else: it would wait for just them."""
    others = [other for other in holders if other is not live]
    return [other for other in others if not is_kept(other, limits)] or others


def choose_loser(candidates: Iterable[LiveRequest], limits: SchedulerLimits) -> LiveRequest | None:
    """The least urgent and youngest of those who are not kept, else of those who are. None when there is no candidate."""
    lives = list(candidates)
    return choose_victim([live for live in lives if not is_kept(live, limits)] or lives)
