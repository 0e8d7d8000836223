"""Calls as their clients see them, per tier, over the last minute. Implements `observe.call.CallListener`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ultrafast.core.tiers import ServiceTier
from ultrafast.dashboard.window import LatencyWindow, SumWindow
from ultrafast.observe.call import LatencyParts
from ultrafast.observe.metrics import Outcome

_OUTCOMES = list(Outcome)
FOLD_GAPS = 128
FOLD_ENDS = 32
"""What comes is noted, and sorted into windows when somebody looks, or when so much has gathered."""


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
        self._tiers = {tier: TierCalls(objectives[tier]) for tier in ServiceTier}
        self._gaps: list[tuple[ServiceTier, float, int, float]] = []
        self._ends: list[tuple[ServiceTier, Outcome, LatencyParts | None, float]] = []

    @property
    def tiers(self) -> Mapping[ServiceTier, TierCalls]:
        """With all that came so far."""
        self._fold()
        return self._tiers

    def on_first_delta(self, tier: ServiceTier, ttft_s: float, now: float) -> None:
        self._tiers[tier].ttft.observe(ttft_s, now)

    def on_gap(self, tier: ServiceTier, gap_s: float, num_tokens: int, now: float) -> None:
        self._gaps.append((tier, gap_s, num_tokens, now))
        if len(self._gaps) >= FOLD_GAPS:
            self._fold()

    def on_call_end(self, tier: ServiceTier, outcome: Outcome, parts: LatencyParts | None, now: float) -> None:
        self._ends.append((tier, outcome, parts, now))
        if len(self._ends) >= FOLD_ENDS:
            self._fold()

    def _fold(self) -> None:
        gaps, self._gaps = self._gaps, []
        for tier, gap_s, num_tokens, now in gaps:
            # A delta without a token of its own (the rest of a character) is a gap, too.
            num = max(1, num_tokens)
            self._tiers[tier].gap.observe(gap_s / num, now, num)
        ends, self._ends = self._ends, []
        for tier, outcome, parts, now in ends:
            self._tiers[tier].on_end(outcome, parts, now)
