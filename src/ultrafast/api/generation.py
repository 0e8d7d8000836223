"""One call under way: runs serving's events into an answer, whole or streamed, and makes sure that the call ends.

Beside the answer somebody waits for the client to leave (the connection itself under our own server, else a task), and in streams
for silence, which is filled with comments, and for a reader that has stopped (a timer, and a task only once it has run out).
Whoever has something to say interrupts the answer; the events are then closed, which aborts the request in the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Protocol

from ultrafast.api.answers import cost_of
from ultrafast.api.chunks import DONE, PING, StreamFacts
from ultrafast.api.collect import Collector
from ultrafast.api.comeback import spread
from ultrafast.api.errors import Headers, error_body
from ultrafast.api.exchange import ClientGoneError, Exchange, Interruption
from ultrafast.core.errors import UltrafastError, UnavailableError
from ultrafast.core.tiers import ServiceTier
from ultrafast.observe.call import CallRecorder, LatencyParts
from ultrafast.serving.contract import ChoiceFinished, Completed, Delta, ServingEvent, Started, Usage
from ultrafast.serving.lane import DeltaLane


class Chunks(Protocol):
    """Encodes the events of a stream."""

    def delta(self, delta: Delta) -> bytes: ...
    def finish(self, finished: ChoiceFinished) -> bytes: ...
    def usage(self, usage: Usage) -> bytes: ...


Begin = Callable[[DeltaLane], AsyncGenerator[ServingEvent, None]]


class Generation:
    """See the module. Used once, by `run_whole` or `run_stream`.

    Args:
        begin: starts the call, given the lane for its deltas.
        describe: what every chunk says, once serving has told the tier.
        requested_tier: what the client asked for, for the headers.
    """

    def __init__(
        self,
        exchange: Exchange,
        begin: Begin,
        recorder: CallRecorder,
        describe: Callable[[Started], StreamFacts],
        requested_tier: ServiceTier | None,
    ) -> None:
        self.exchange = exchange
        self.recorder = recorder
        self.started: Started | None = None
        self.completed: Completed | None = None
        self._begin = begin
        self._describe = describe
        self._requested_tier = requested_tier
        self._chunks: Chunks | None = None
        self._facts: StreamFacts | None = None
        self._lane = DeltaLane(_never, self._write_at_once)
        self._write_direct: Callable[[bytes], None] | None = None

    # -- whole answers

    async def run_whole(self, build: Callable[[Collector, StreamFacts, Usage], bytes]) -> None:
        """Answer with one JSON body.

        Raises:
            UltrafastError: the call failed; nothing was sent.
            ClientGoneError: the client left.
        """
        collector = Collector()

        def collect(delta: Delta) -> None:
            self.recorder.on_delta(delta.index, delta.num_tokens, self.exchange.clock())
            collector.delta(delta)

        self._lane = DeltaLane(_always, collect)
        events = self._begin(self._lane)
        answer = self._collect(events, collect, collector)
        if self.exchange.interrupt_when_lost():
            error = await self._guard(events, answer)
        else:
            async with asyncio.TaskGroup() as group:
                watcher = group.create_task(self.exchange.watch_disconnect())
                error = await self._guard(events, answer)
                watcher.cancel()
        if error is not None:
            raise error
        assert self._facts is not None, "serving begins with Started"
        assert self.completed is not None, "serving ends with Completed"
        body = build(collector, self._facts, self.completed.usage)
        await self.exchange.respond(200, self._headers(), body)

    async def _collect(
        self, events: AsyncGenerator[ServingEvent, None], collect: Callable[[Delta], None], collector: Collector
    ) -> None:
        async for event in events:
            if isinstance(event, Delta):
                collect(event)
            elif isinstance(event, ChoiceFinished):
                collector.finish(event)
            else:
                self._take_frame(event)

    # -- streams

    async def run_stream(self, make_chunks: Callable[[StreamFacts], Chunks], keepalive_interval_s: float) -> None:
        """Answer with server-sent events.

        Raises:
            UltrafastError: the call failed before anything was sent.
            ClientGoneError: the client left or stopped reading.
        """
        exchange = self.exchange
        events = self._begin(self._lane)
        async with asyncio.TaskGroup() as group:
            beside: list[asyncio.Task[None]] = []
            if not exchange.interrupt_when_lost():
                beside.append(group.create_task(exchange.watch_disconnect()))
            # Most streams are over, or have written something, long before there is anything to do.
            timer = asyncio.get_running_loop().call_later(
                min(keepalive_interval_s, exchange.write_stall_timeout_s / 4),
                lambda: beside.append(group.create_task(self._keep_alive(keepalive_interval_s))),
            )
            try:
                error = await self._guard(events, self._pump(events, make_chunks))
            finally:
                timer.cancel()
                for task in beside:
                    task.cancel()
        if error is None:
            return
        if isinstance(error, ClientGoneError) or not exchange.is_started:
            raise error
        spread(error)
        exchange.note_error(error)
        await exchange.finish_within_stall(b"data: " + error_body(error, exchange.request_id) + b"\n\n" + DONE)
        raise StreamFailedError from error

    async def _pump(self, events: AsyncGenerator[ServingEvent, None], make_chunks: Callable[[StreamFacts], Chunks]) -> None:
        async for event in events:
            if isinstance(event, Delta):
                if self._lane.is_open():
                    self._write_at_once(event)
                else:
                    await self._write_delta(event)
            elif isinstance(event, ChoiceFinished):
                assert self._chunks is not None, "serving begins with Started"
                await self._write(self._chunks.finish(event))
            else:
                self._take_frame(event)
                if self._facts is not None and self._chunks is None:
                    self._chunks = make_chunks(self._facts)
                    if (direct := self.exchange.direct) is not None:
                        self._write_direct, self._lane.is_open = direct, direct.is_open
        assert self._chunks is not None, "serving begins with Started"
        assert self.completed is not None, "serving ends with Completed"
        await self.exchange.finish(self._chunks.usage(self.completed.usage) + self._last_timing() + DONE)

    def _write_at_once(self, delta: Delta) -> None:
        assert self._chunks is not None, "the lane is open"
        assert self._write_direct is not None, "the lane is open"
        exchange = self.exchange
        data = self._chunks.delta(delta)
        if data:
            self._write_direct(data)
        now = exchange.clock()
        if data:
            exchange.last_write_s = now
        self.recorder.on_delta(delta.index, delta.num_tokens, now)

    async def _write_delta(self, delta: Delta) -> None:
        assert self._chunks is not None, "serving begins with Started"
        data = self._chunks.delta(delta)
        if data:
            await self._write(data)
        self.recorder.on_delta(delta.index, delta.num_tokens, self.exchange.clock())

    async def _write(self, data: bytes) -> None:
        if self.exchange.is_started:
            await self.exchange.write(data)
        else:
            await self._start_stream(data)

    async def _start_stream(self, first: bytes) -> None:
        headers = self._headers()
        headers += [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            # nginx would otherwise collect events into blocks.
            (b"x-accel-buffering", b"no"),
        ]
        await self.exchange.start(200, headers, first)

    async def _keep_alive(self, interval_s: float) -> None:
        exchange = self.exchange
        stall_s = exchange.write_stall_timeout_s
        while True:
            now = exchange.clock()
            if exchange.write_started_s is not None:
                if now - exchange.write_started_s >= stall_s:
                    exchange.interrupt(Interruption.STALLED)
                    return
                pause_s = stall_s / 4
            else:
                silent_s = now - exchange.last_write_s
                if silent_s >= interval_s:
                    # A request without a place may still be refused: its status is not known yet.
                    if self.is_placed:
                        await self._write(PING)
                    silent_s = 0.0
                pause_s = min(interval_s - silent_s, stall_s / 4)
            await asyncio.sleep(pause_s)

    def _last_timing(self) -> bytes:
        """What the headers of a stream came too early for, as a comment: no client trips over it, and ours read it."""
        return f": server-timing {self._timing(self.exchange.clock())}\n\n".encode()

    def _timing(self, now: float) -> str:
        parts = self.parts(now)
        assert parts is not None, "serving ends with Completed"
        total_s = now - self.exchange.arrival_s
        return (
            f"network;dur={parts.network_s * 1000:.1f}, queue;dur={parts.queue_s * 1000:.1f}, "
            f"compute;dur={parts.compute_s * 1000:.1f}, output;dur={parts.output_s * 1000:.1f}, total;dur={total_s * 1000:.1f}"
        )

    # -- both

    @property
    def is_placed(self) -> bool:
        """The engine has given the call a place: it is not refused any more."""
        return self._lane.placed is not None or self.started is not None

    def parts(self, now: float) -> LatencyParts | None:
        """The time until `now` in its four parts; None while serving goes on."""
        if self.completed is None:
            return None
        exchange, timings = self.exchange, self.completed.timings
        return LatencyParts.divide(
            now - exchange.arrival_s,
            network_s=exchange.body_read_s + exchange.write_blocked_s,
            queue_s=timings.queue_s,
            compute_s=timings.compute_s,
        )

    def _take_frame(self, event: Started | Completed) -> None:
        if isinstance(event, Started):
            self.started = event
            self._facts = self._describe(event)
            self.recorder.serve_as(event.tier)
        else:
            self.completed = event

    async def _guard(self, events: AsyncGenerator[ServingEvent, None], answer: Coroutine[None, None, None]) -> Exception | None:
        """Run the answer until it is done, fails or is interrupted; return what went wrong instead of raising it."""
        exchange = self.exchange
        try:
            async with exchange.interruptible():
                try:
                    await answer
                finally:
                    await events.aclose()
        except UltrafastError as error:
            return error
        except TimeoutError as error:
            if exchange.interruption is None:
                return _unexpected(error, exchange)
        except Exception as error:  # noqa: BLE001 - boundary: whatever broke, this client gets an error and the others live
            return _unexpected(error, exchange)
        finally:
            exchange.end_interruptible()
        return await self._on_interruption() if exchange.interruption and not exchange.is_complete else None

    async def _on_interruption(self) -> Exception:
        reason = self.exchange.interruption
        assert reason is not None, "called after an interruption"
        if reason is Interruption.SHUTDOWN:
            return UnavailableError("The server is shutting down and could not finish this request.", code="shutting_down")
        if reason is Interruption.STALLED:
            await self.exchange.abort_connection()
        return ClientGoneError(reason)

    def _headers(self) -> Headers:
        exchange = self.exchange
        now = exchange.clock()
        headers: Headers = [(b"openai-processing-ms", exchange.processing_ms(now))]
        started = self.started
        requested = self._requested_tier or "auto"
        headers.append((b"x-ultrafast-tier-requested", requested.encode()))
        served = started or self._lane.placed
        assert served is not None, "nothing is sent before there is a place"
        timing = f"queue;dur={served.queue_s * 1000:.1f}" if self.completed is None else self._timing(now)
        if started is not None:
            timing += f", prefill;dur={started.prefill_s * 1000:.1f}"
        if self.completed is not None and self._facts is not None and not self._facts.price.is_free:
            headers.append((b"x-ultrafast-cost", f"{cost_of(self.completed.usage, self._facts.price):.10f}".encode()))
        headers += [
            (b"server-timing", timing.encode()),
            (b"x-ultrafast-tier-served", served.tier.encode()),
            (b"x-ultrafast-tier-reason", served.tier_reason.encode()),
        ]
        return headers


class StreamFailedError(Exception):
    """The answer ended with an error in the stream; nothing is left to send. `__cause__` is the error."""


def _always() -> bool:
    return True


def _never() -> bool:
    return False


def _unexpected(error: Exception, exchange: Exchange) -> Exception:
    exchange.log_bug(error)
    return error
