"""From serving to stopped: who may still come in, who is still inside, and when the rest is cut off.

    serving --begin_drain--> draining --drained, or cut--> stopped

One per server; used on its event loop only.
"""

from __future__ import annotations

import asyncio

from ultrafast.api.exchange import Exchange, Interruption
from ultrafast.core.errors import UnavailableError


class Lifecycle:
    """Counts the calls that generate and ends them at shutdown. Health checks and documents are not calls."""

    def __init__(self) -> None:
        self.is_draining = False
        self._active: set[Exchange] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_active(self) -> int:
        return len(self._active)

    def check(self) -> None:
        """Refuse a new call early, before its body is read.

        Raises:
            UnavailableError: the server is shutting down.
        """
        if self.is_draining:
            raise UnavailableError("The server is shutting down and takes no new requests.", code="shutting_down")

    def enter(self, exchange: Exchange) -> None:
        """Take a place for one call; whoever gets it must `leave`.

        Raises:
            UnavailableError: the server is shutting down.
        """
        self.check()
        self._active.add(exchange)
        self._idle.clear()

    def leave(self, exchange: Exchange) -> None:
        """The call has ended."""
        self._active.discard(exchange)
        if not self._active:
            self._idle.set()

    def begin_drain(self) -> None:
        """Take nothing new from now on; readiness turns 503."""
        self.is_draining = True

    async def drain(self, timeout_s: float) -> int:
        """Wait until every call has ended, at most `timeout_s`, then cut the rest off; return how many that were.

        A call that is cut off gets an error in its own stream, or a 503 where nothing was sent yet.
        """
        self.begin_drain()
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return self.cut()
        return 0

    def cut(self) -> int:
        """End every call now; return how many there were."""
        active = list(self._active)
        for exchange in active:
            exchange.interrupt(Interruption.SHUTDOWN)
        return len(active)
