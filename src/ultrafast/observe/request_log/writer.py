"""Writes the request log from what the engine client tells, on a thread of its own: no request ever waits for a disk.

A request that finds the queue full, or a disk that takes nothing, is not in the log; it is counted, and said once a minute.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

import msgspec

from ultrafast.core.clock import Clock
from ultrafast.core.events import RequestFinished
from ultrafast.core.request import FinishReason, Request
from ultrafast.kv.names import PrefixNames
from ultrafast.observe.request_log.files import LogFiles
from ultrafast.observe.request_log.record import LogRecord

MAX_QUEUED = 10_000
_BATCH = 256
_LINGER_S = 0.2
"""So long lines may gather before they are written together."""
_CLOSE_TIMEOUT_S = 2.0
_WARN_EVERY_S = 60.0

_log = logging.getLogger("ultrafast.server")


class Finished(Protocol):
    """What is needed of `engine.messages.StepReport`."""

    @property
    def finished(self) -> list[RequestFinished]: ...


class _Entry(NamedTuple):
    request: Request
    arrival: float
    finished: RequestFinished


class RequestLog:
    """See the module. `submitted` and `on_report` belong to the event loop's thread.

    Args:
        names: under the key of this log.
        count: told how many lines were written (True) or lost (False); any thread.
        clock: the clock of the requests' times.
    """

    def __init__(
        self, files: LogFiles, names: PrefixNames, count: Callable[[bool, int], None], clock: Clock = time.monotonic
    ) -> None:
        self._files = files
        self._names = names
        self._count = count
        self._clock = clock
        self._open: dict[str, tuple[Request, float]] = {}
        self._queue: queue.Queue[_Entry | None] = queue.Queue(MAX_QUEUED)
        self._warned_s = -_WARN_EVERY_S
        self._num_unsaid = 0
        self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)
        self._thread.start()

    def submitted(self, request: Request) -> None:
        """A request was handed to the engine. Those of the server itself are not traffic."""
        if not request.is_internal:
            arrival = datetime.now(tz=UTC).timestamp() - (self._clock() - request.arrival_s)
            self._open[request.request_id] = (request, arrival)

    def on_report(self, report: Finished) -> None:
        """Hear what ended."""
        for finished in report.finished:
            opened = self._open.pop(finished.request_id, None)
            if opened is None or (opened[0].is_inquiry and finished.reason is not FinishReason.REJECT):
                continue  # who asked and was not refused comes again, as itself
            try:
                self._queue.put_nowait(_Entry(*opened, finished))
            except queue.Full:
                self._lose(1, "it is written more slowly than requests end")

    def close(self) -> None:
        """Write what is queued, for a moment; a disk that hangs does not hold up the end of the server."""
        try:
            self._queue.put(None, timeout=_CLOSE_TIMEOUT_S)
        except queue.Full:
            return
        self._thread.join(_CLOSE_TIMEOUT_S)

    # -- on the thread ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        is_open = True
        while is_open:
            entries, is_open = self._gather()
            if not entries:
                continue
            lines = b"".join(msgspec.json.encode(self._record(entry)) + b"\n" for entry in entries)
            try:
                self._files.append(lines)
            except OSError as error:
                self._lose(len(entries), str(error))
            else:
                self._count(True, len(entries))
        self._files.close()

    def _gather(self) -> tuple[list[_Entry], bool]:
        """Wait for an entry, then for a moment for more. False: there will be no more."""
        first = self._queue.get()
        if first is None:
            return [], False
        entries, end_s = [first], time.monotonic() + _LINGER_S
        while len(entries) < _BATCH:
            try:
                entry = self._queue.get(timeout=max(0.0, end_s - time.monotonic()))
            except queue.Empty:
                break
            if entry is None:
                return entries, False
            entries.append(entry)
        return entries, True

    def _record(self, entry: _Entry) -> LogRecord:
        request, finished = entry.request, entry.finished
        arrival_s = finished.arrival_s
        return LogRecord(
            arrival=round(entry.arrival, 4),
            tier=request.tier,
            served_tier=finished.tier if finished.tier is not request.tier else None,
            prompt_tokens=0 if request.is_inquiry else request.num_prompt_tokens,
            cached_tokens=finished.num_cached_tokens,
            output_tokens=finished.num_output_tokens,
            outcome=finished.reason,
            reason=finished.drop_reason,
            queue_s=_since(arrival_s, finished.scheduled_s),
            ttft_s=_since(arrival_s, finished.first_token_s),
            e2e_s=round(finished.finished_s - arrival_s, 5),
            space=self._names.of_space(request.cache_salt),
            prefix=self._names.of(request.prompt_tokens) if request.use_cache and not request.is_inquiry else [],
        )

    def _lose(self, num_lines: int, why: str) -> None:
        self._count(False, num_lines)
        self._num_unsaid += num_lines
        now_s = time.monotonic()
        if now_s - self._warned_s >= _WARN_EVERY_S:
            _log.warning("the request log lost %d requests: %s", self._num_unsaid, why)
            self._warned_s, self._num_unsaid = now_s, 0


def _since(arrival_s: float, at_s: float | None) -> float | None:
    return None if at_s is None else round(at_s - arrival_s, 5)
