"""How late the event loop of the API process is: what a request may have waited before its clock could start.

    due          due + lag
     |              |
     |--- others ---|-- tick: one sample, the next one is due in `INTERVAL_S`

A request's arrival is stamped when the loop reads its first byte, so a loop that is busy with something else is in none of the
parts of its latency. Here it shows: whatever holds the loop for `h` seconds makes one sample of at least `h - INTERVAL_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

INTERVAL_S = 0.5
"""Between two samples. Each wakes a process on cores that the compute threads want: ten a second kept 1.7 % of a core busy."""


@contextlib.contextmanager
def watched_loop(observe: Callable[[float], None]) -> Iterator[None]:
    """Give `observe` the lag of the running event loop, seconds from 0, every `INTERVAL_S`, on that loop."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def tick(due_s: float) -> None:
        nonlocal timer
        now = time.monotonic()  # not the loop's time, which stands still while the loop does
        observe(max(0.0, now - due_s))
        timer = loop.call_later(INTERVAL_S, tick, now + INTERVAL_S)

    timer = loop.call_later(INTERVAL_S, tick, time.monotonic() + INTERVAL_S)
    try:
        yield
    finally:
        timer.cancel()
