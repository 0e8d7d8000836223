"""The child's way out: frames to the API process, sent without ever waiting for it.

`Outbox` is shared by the engine thread (one report per step) and the heartbeat thread. The engine thread sends directly, so
a token takes no detour through another thread. While the API process reads too slowly, what does not fit waits here: the
rest of one frame, and one report into which all following ones are merged. That is bounded, because the tokens of a request are.
"""

from __future__ import annotations

import select
import socket
import threading

from ultrafast.core.events import (
    KvLevelsChanged,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    StepFinished,
    TokenProduced,
)
from ultrafast.engine.codec import encode_frame
from ultrafast.engine.messages import FromEngine, StepReport

MAX_TOKENS_PER_FRAME = 4096
"""Keeps a merged report far below MAX_FRAME_BYTES, log-probabilities included."""


class MergedReport:
    """Reports that found the socket full, as one.

    Of several steps' `stats` the last is kept (their `step` shows the gap), and of `levels` too.
    """

    def __init__(self) -> None:
        self._tokens: list[TokenProduced] = []
        self._scheduled: list[RequestScheduled] = []
        self._preempted: list[RequestPreempted] = []
        self._finished: list[RequestFinished] = []
        self._stats: StepFinished | None = None
        self._levels: KvLevelsChanged | None = None

    def __bool__(self) -> bool:
        return bool(self._tokens or self._scheduled or self._preempted or self._finished or self._stats or self._levels)

    def add(self, report: StepReport) -> None:
        self._tokens += report.tokens
        self._scheduled += report.scheduled
        self._preempted += report.preempted
        self._finished += report.finished
        self._stats = report.stats or self._stats
        self._levels = report.levels or self._levels

    def take(self) -> StepReport:
        """Return the next report to send. A request's terminal event never goes before its tokens."""
        tokens, self._tokens = self._tokens[:MAX_TOKENS_PER_FRAME], self._tokens[MAX_TOKENS_PER_FRAME:]
        scheduled, self._scheduled = self._scheduled, []
        if self._tokens:
            return StepReport(tokens=tokens, scheduled=scheduled)
        report = StepReport(tokens, scheduled, self._preempted, self._finished, self._stats, self._levels)
        self._preempted, self._finished, self._stats, self._levels = [], [], None, None
        return report


class Outbox:
    """Sends frames over a stream socket; every method may be called from any thread and none blocks on the peer, but `wait`.

    A peer that is gone is not an error here: the reader thread sees the end of the connection and ends the process.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._lock = threading.Lock()
        self._unsent: memoryview | None = None
        self._merged = MergedReport()
        self._has_backlog = threading.Event()

    def send_report(self, report: StepReport) -> None:
        """Send, or merge into what waits. Reports arrive in order and none is lost."""
        with self._lock:
            if not self._has_backlog.is_set() or self._flush():
                self._send(report)
            else:
                self._merged.add(report)
            self._note_backlog()

    def send_if_free(self, message: FromEngine) -> bool:
        """Send a message that may as well be skipped (a heartbeat, progress); return whether it went out."""
        with self._lock:
            is_free = self._flush()
            if is_free:
                self._send(message)
            self._note_backlog()
        return is_free

    def send_last_words(self, message: FromEngine, timeout_s: float) -> None:
        """Send a message that must arrive, waiting at most `timeout_s` for room. Not for the engine thread while it serves."""
        while not self.send_if_free(message):
            if not self._poll_writable(timeout_s):
                return
        while self._has_backlog.is_set() and self._poll_writable(timeout_s):
            self.flush()

    def wait(self, timeout_s: float) -> None:
        """Sleep up to `timeout_s`; come back sooner after flushing when a backlog found room. For the heartbeat thread."""
        if self._has_backlog.wait(timeout_s) and self._poll_writable(timeout_s):
            self.flush()

    def flush(self) -> None:
        """Send as much of the backlog as fits."""
        with self._lock:
            self._flush()
            self._note_backlog()

    def _poll_writable(self, timeout_s: float) -> bool:
        poller = select.poll()
        poller.register(self._socket, select.POLLOUT)
        return bool(poller.poll(timeout_s * 1000))

    def _note_backlog(self) -> None:
        was_behind = self._has_backlog.is_set()
        is_behind = self._unsent is not None or (was_behind and bool(self._merged))
        if is_behind != was_behind:
            (self._has_backlog.set if is_behind else self._has_backlog.clear)()

    def _flush(self) -> bool:
        """Return True when nothing waits any more. Under the lock, as all below."""
        while self._unsent is not None or self._merged:
            if self._unsent is None:
                self._send(self._merged.take())
            else:
                self._push(self._unsent)
            if self._unsent is not None:
                return False
        return True

    def _send(self, message: FromEngine) -> None:
        self._push(memoryview(encode_frame(message)))

    def _push(self, data: memoryview) -> None:
        """Send what the socket takes; the rest waits in `_unsent`."""
        try:
            num_sent = self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            num_sent = 0
        except (BrokenPipeError, ConnectionResetError):
            num_sent = len(data)  # nobody will read it: the reader thread is about to end this process
        self._unsent = data[num_sent:] if num_sent < len(data) else None
