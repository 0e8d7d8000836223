"""The admission policy: whether a waiting request may start now, judged by cells (a sequence slot alone says nothing).

    capacity |## computed ##|-- promised to the running --|==== available ====|
                             rest of their prompts,
                             and up to `reserve_tokens` of output each

A request starts when its uncached tokens and its own reserve fit into what is available. So every running request can always
decode some way ahead before anybody must give way. When nothing runs, what is physically possible is enough: waiting would not
make it more.
"""

from __future__ import annotations

from collections.abc import Iterable

from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.live import LiveRequest


def reserve(live: LiveRequest, limits: SchedulerLimits) -> int:
    """Cells to keep for the output that comes next; never more than the request can still produce."""
    rest = min(live.own_end, limits.max_request_tokens) - live.num_tokens
    return max(0, min(rest, limits.reserve_tokens))


def promised_to(live: LiveRequest, limits: SchedulerLimits) -> int:
    """Cells that a request which holds a sequence will need before it needs more."""
    return len(live.tokens) - live.num_computed + reserve(live, limits)


def promised_by_urgency(holders: Iterable[LiveRequest], limits: SchedulerLimits) -> list[int]:
    """The sum of `promised_to` for each urgency; spelled out, since it is asked of everybody who holds a sequence."""
    promised = [0] * len(limits.tiers)
    most, longest = limits.reserve_tokens, limits.max_request_tokens
    for live in holders:
        num_tokens = len(live.tokens)
        end = min(longest, live.own_end)
        rest = end - num_tokens
        if rest < most:
            promised[live.urgency] += num_tokens - live.num_computed + (max(0, rest))
        else:
            promised[live.urgency] += num_tokens - live.num_computed + most
    return promised


def num_promised(running: Iterable[LiveRequest], limits: SchedulerLimits) -> int:
    """Cells that the running requests will need before they need more."""
    return sum(promised_to(live, limits) for live in running)


def num_needed(live: LiveRequest, num_matched: int, limits: SchedulerLimits) -> int:
    """Cells that a request needs for its start when `num_matched` of its tokens are shared."""
    return live.num_tokens - num_matched + reserve(live, limits)
