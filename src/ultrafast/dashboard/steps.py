"""What the engine did lately: its last steps one by one, tokens per second for two minutes, the prefix cache's hits.

Everything is a ring of fixed length. Written once per step on the event loop, in a few microseconds.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from ultrafast.core.events import RequestFinished, StepFinished
from ultrafast.dashboard.views import StepRow
from ultrafast.dashboard.window import SumWindow
from ultrafast.engine.messages import StepReport

MAX_STEPS = 160
NUM_SECONDS = 120
RATE_SECONDS = 5


class Seconds:
    """(output tokens, prefill tokens) per whole second of the last `NUM_SECONDS`."""

    def __init__(self) -> None:
        self._ring = [(0, 0)] * NUM_SECONDS
        self._second = 0

    def add(self, num_output: int, num_prefill: int, now: float) -> None:
        slot = self._advance(now)
        output, prefill = self._ring[slot]
        self._ring[slot] = (output + num_output, prefill + num_prefill)

    def read(self, now: float) -> list[tuple[int, int]]:
        """Whole seconds, oldest first; the current one, which is not over, is left out."""
        slot = self._advance(now)
        return self._ring[slot + 1 :] + self._ring[:slot]

    def _advance(self, now: float) -> int:
        second = max(int(now), self._second)
        for passed in range(max(self._second + 1, second - NUM_SECONDS + 1), second + 1):
            self._ring[passed % NUM_SECONDS] = (0, 0)
        self._second = second
        return second % NUM_SECONDS


class Steps:
    """See the module.

    Attributes:
        last: the newest report with numbers; None before the first. last_run: those of the newest step that computed anything.
        num_seen: such steps so far.
    """

    def __init__(self) -> None:
        self.last: StepReport | None = None
        self.last_run: StepFinished | None = None
        self.num_seen = 0
        self._rows: deque[StepRow] = deque(maxlen=MAX_STEPS)
        self._seconds = Seconds()
        self._cache = SumWindow(2)

    def on_report(self, report: StepReport, now: float) -> None:
        for finished in report.finished:
            self._on_finished(finished, now)
        stats = report.stats
        if stats is not None:
            self._on_step(report, stats, now)
        elif report.tokens:
            self._seconds.add(len(report.tokens), 0, now)

    def since(self, number: int) -> list[StepRow]:
        """Steps after `number`, oldest first; what fell out of the ring is missing."""
        num_new = min(self.num_seen - number, len(self._rows))
        return list(islice(self._rows, len(self._rows) - num_new, None)) if num_new > 0 else []

    def seconds(self, now: float) -> list[tuple[int, int]]:
        return self._seconds.read(now)

    def cache_tokens(self, now: float) -> tuple[int, int]:
        """Prompt tokens of the last minute's finished requests that were looked up in the prefix cache, and found."""
        queried, hit = self._cache.read(now)
        return round(queried), round(hit)

    def _on_finished(self, event: RequestFinished, now: float) -> None:
        if event.scheduled_s is not None and not event.is_internal:
            self._cache.add((event.num_prompt_tokens, event.num_cached_tokens), now)

    def _on_step(self, report: StepReport, stats: StepFinished, now: float) -> None:
        self.last = report
        if not stats.num_tokens:
            return  # somebody only came or went
        self.last_run = stats
        self.num_seen += 1
        row = StepRow(self.num_seen, stats.duration_s, stats.num_decode_sequences, stats.num_prefill_tokens, stats.num_waiting)
        self._rows.append(row)
        self._seconds.add(len(report.tokens), stats.num_prefill_tokens, now)
