"""Calls as their clients see them, per tier, over the last minute. Implements `observe.call.CallListener`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ultrafast.core.tiers import ServiceTier
from ultrafast.dashboard.window import LatencyWindow, SumWindow
from ultrafast.observe.call import LatencyParts
from ultrafast.observe.metrics import Outcome

_OUTCOMES = list(Outcome)


class Objectives(NamedTuple):
    """What a tier promises, seconds: time to first token, time per output token."""

    ttft_s: float
    tpot_s: float


class TierCalls:
    """The windows of one tier. A gap is held against the objective for the time per output token."""

    def __init__(self, objectives: Objectives) -> None:
        self.ttft = LatencyWindow(objectives.ttft_s)
        self.gap = LatencyWindow(objectives.tpot_s)
        self.num_by_outcome = [0] * len(_OUTCOMES)
        self._outcomes = SumWindow(len(_OUTCOMES))
        self._parts = SumWindow(5)

    def on_end(self, outcome: Outcome, parts: LatencyParts | None, now: float) -> None:
        index = _OUTCOMES.index(outcome)
        self.num_by_outcome[index] += 1
        self._outcomes.add(tuple(float(i == index) for i in range(len(_OUTCOMES))), now)
        if parts is not None:
            self._parts.add((parts.network_s, parts.queue_s, parts.compute_s, parts.output_s, 1.0), now)

    def recent_outcomes(self, now: float) -> list[int]:
        """Ends in the window, in the order of `Outcome`."""
        return [round(num) for num in self._outcomes.read(now)]

    def mean_parts_s(self, now: float) -> list[float] | None:
        """Mean of network, queue, compute and output over completed calls of the window; None without any."""
        *sums, num = self._parts.read(now)
        return [total / num for total in sums] if num else None


class Calls:
    """All tiers."""

    def __init__(self, objectives: Mapping[ServiceTier, Objectives]) -> None:
        self.tiers = {tier: TierCalls(objectives[tier]) for tier in ServiceTier}

    def on_first_delta(self, tier: ServiceTier, ttft_s: float, now: float) -> None:
        self.tiers[tier].ttft.observe(ttft_s, now)

    def on_gap(self, tier: ServiceTier, gap_s: float, num_tokens: int, now: float) -> None:
        # A delta without a token of its own (the rest of a character) is a gap, too.
        num = max(1, num_tokens)
        self.tiers[tier].gap.observe(gap_s / num, now, num)

    def on_call_end(self, tier: ServiceTier, outcome: Outcome, parts: LatencyParts | None, now: float) -> None:
        self.tiers[tier].on_end(outcome, parts, now)
