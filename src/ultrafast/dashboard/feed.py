"""`GET /dashboard/events` and `/dashboard/state`: frames for browsers and scripts, read-only.

A frame is made only while somebody watches, at most once per tick for all watchers, and never kept for one that reads
slowly: it gets the newest when it is ready for it. So the feed's memory is bounded by the number of watchers.
"""

from __future__ import annotations

import asyncio

import msgspec

from ultrafast.core.errors import OverloadedError
from ultrafast.dashboard.dashboard import Dashboard, Sources
from ultrafast.dashboard.ports import Exchange, HeaderList

INTERVAL_S = 0.2
MAX_WATCHERS = 16
_encode = msgspec.json.Encoder().encode


class Feed:
    """The routes with figures.

    Args:
        interval_s: time between two frames.
        max_watchers: further ones are refused with 429.
    """

    def __init__(
        self, dashboard: Dashboard, sources: Sources, *, interval_s: float = INTERVAL_S, max_watchers: int = MAX_WATCHERS
    ) -> None:
        self._dashboard = dashboard
        self._sources = sources
        self._interval_s = interval_s
        self._max_watchers = max_watchers
        self._tick = -1
        self._event = b""
        self._num_steps = 0
        self.num_watchers = 0

    async def state(self, exchange: Exchange) -> None:
        """Answer `GET /dashboard/state`: one frame."""
        await exchange.respond(200, [], _encode(self._dashboard.frame(self._sources)))

    async def events(self, exchange: Exchange) -> None:
        """Answer `GET /dashboard/events`: frames as server-sent events until the client leaves or the server shuts down.

        Raises:
            OverloadedError: enough browsers watch already.
        """
        if exchange.scope["method"] == "HEAD":
            await exchange.respond(200, [], b"", content_type=b"text/event-stream")
            return
        if self.num_watchers >= self._max_watchers:
            raise OverloadedError(
                f"{self._max_watchers} dashboards are open already.", retry_after_s=10, hint="close one of them"
            )
        self.num_watchers += 1
        try:
            await self._watch(exchange)
        finally:
            self.num_watchers -= 1

    async def _watch(self, exchange: Exchange) -> None:
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(exchange.watch_disconnect())
            try:
                async with exchange.interruptible():
                    await self._send_frames(exchange)
            except TimeoutError:
                # It left, or took nothing for too long: either way nobody reads on.
                await exchange.abort_connection()
            finally:
                watcher.cancel()

    async def _send_frames(self, exchange: Exchange) -> None:
        headers: HeaderList = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            # nginx would otherwise collect events into blocks.
            (b"x-accel-buffering", b"no"),
        ]
        await exchange.start(200, headers)
        # The first frame has the whole strip chart, the following ones what came since the tick before.
        await self._send(exchange, _as_event(_encode(self._dashboard.frame(self._sources))))
        while not self._sources.is_draining():
            await asyncio.sleep(self._interval_s)
            await self._send(exchange, self._newest())
        await exchange.finish()

    async def _send(self, exchange: Exchange, event: bytes) -> None:
        async with asyncio.timeout(exchange.write_stall_timeout_s):
            await exchange.write(event)

    def _newest(self) -> bytes:
        """The frame of this tick, made by whoever asks first."""
        tick = int(self._dashboard.clock() / self._interval_s)
        if tick != self._tick:
            frame = self._dashboard.frame(self._sources, self._num_steps)
            self._tick, self._num_steps = tick, self._dashboard.num_steps
            self._event = _as_event(_encode(frame))
        return self._event


def _as_event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
