"""How late the event loop wakes: the client's check on itself."""

from __future__ import annotations

import asyncio

import numpy as np

from ultrafast.bench.http1 import NsClock
from ultrafast.bench.records import LoopLag
from ultrafast.bench.stats.percentiles import nearest_ranks

INTERVAL_S = 0.01
_MAX_SAMPLES = 1_000_000


class LoopLagProbe:
    """Sleeps 10 ms over and over and notes by how much each sleep ran over. A stalled loop shows as one long sleep."""

    def __init__(self, clock: NsClock) -> None:
        self._clock = clock
        self.samples_s: list[float] = []

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            start_ns = self._clock()
            await asyncio.sleep(INTERVAL_S)
            if len(self.samples_s) < _MAX_SAMPLES:
                self.samples_s.append(max(0.0, (self._clock() - start_ns) / 1e9 - INTERVAL_S))

    def result(self) -> LoopLag:
        """The figures so far."""
        p50_s, p99_s, max_s = nearest_ranks(self.samples_s, (0.5, 0.99, 1.0))
        return LoopLag(p50_s or 0.0, p99_s or 0.0, max_s or 0.0, len(self.samples_s))


def worst(lags: list[LoopLag]) -> LoopLag:
    """Of several processes: each figure of the one that fared worst in it."""
    if not lags:
        return LoopLag()
    table = np.array([(lag.p50_s, lag.p99_s, lag.max_s) for lag in lags])
    p50_s, p99_s, max_s = (float(value) for value in table.max(axis=0))
    return LoopLag(p50_s, p99_s, max_s, sum(lag.num_samples for lag in lags))
