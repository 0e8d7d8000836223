"""How far a run is, with percentiles of the most recent requests; for a bar on the terminal."""

from __future__ import annotations

from collections import deque

import msgspec

from ultrafast.bench.figures import figures_of
from ultrafast.bench.records import Outcome, RequestRecord
from ultrafast.bench.stats.percentiles import nearest_rank

_RECENT = 500


class Progress(msgspec.Struct, frozen=True):
    """A snapshot. Percentiles are seconds, of the most recent 500 successful requests; None before the first one."""

    num_planned: int
    num_ok: int = 0
    num_failed: int = 0
    num_in_flight: int = 0
    elapsed_s: float = 0.0
    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None
    tpot_p50_s: float | None = None
    num_tokens: int = 0

    @property
    def num_done(self) -> int:
        return self.num_ok + self.num_failed


class ProgressCounter:
    """Counts requests as they end."""

    def __init__(self, num_planned: int) -> None:
        self._num_planned = num_planned
        self._num_ok = self._num_failed = self._num_tokens = 0
        self._ttfts: deque[float] = deque(maxlen=_RECENT)
        self._tpots: deque[float] = deque(maxlen=_RECENT)

    def add(self, record: RequestRecord) -> None:
        """A request has ended."""
        self._num_ok += record.is_ok
        self._num_failed += record.outcome is Outcome.FAILED
        self._num_tokens += record.usage.num_output_tokens or len(record.chunks)
        if record.is_ok:
            figures = figures_of(record)
            if figures.ttft_s is not None:
                self._ttfts.append(figures.ttft_s)
            if figures.tpot_s is not None:
                self._tpots.append(figures.tpot_s)

    def snapshot(self, num_in_flight: int, elapsed_s: float) -> Progress:
        """The state now."""
        return Progress(
            self._num_planned,
            self._num_ok,
            self._num_failed,
            num_in_flight,
            elapsed_s,
            nearest_rank(list(self._ttfts), 0.5),
            nearest_rank(list(self._ttfts), 0.99),
            nearest_rank(list(self._tpots), 0.5),
            self._num_tokens,
        )
