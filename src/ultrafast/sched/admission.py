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
    rest = min(live.request.params.max_tokens - live.num_output, limits.max_request_tokens - len(live.tokens))
    return max(0, min(rest, limits.reserve_tokens))


def promised_to(live: LiveRequest, limits: SchedulerLimits) -> int:
    """Cells that a request which holds a sequence will need before it needs more."""
    num_tokens = len(live.tokens)  # `reserve` spelled out: this is asked of everybody who runs
    rest = min(
        live.request.params.max_tokens - num_tokens + live.num_prompt,
        limits.max_request_tokens - num_tokens,
        limits.reserve_tokens,
    )
    return num_tokens - live.num_computed + max(0, rest)


def num_promised(running: Iterable[LiveRequest], limits: SchedulerLimits) -> int:
    """Cells that the running requests will need before they need more."""
    return sum(promised_to(live, limits) for live in running)


def num_needed(live: LiveRequest, num_matched: int, limits: SchedulerLimits) -> int:
    """Cells that a request needs for its start when `num_matched` of its tokens are shared."""
    return len(live.tokens) - num_matched + reserve(live, limits)
