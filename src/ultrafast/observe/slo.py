"""Attainment: which share of each tier's requests met their objectives lately, and why the others missed them.

    now - 1 h                        now - 10 min           now - 1 min   now
    |--- slices of ten seconds, counts only ----------------------------|

Only ended requests count, and each for the tier that it asked for, by that tier's objectives or its own: a tier that moves its
requests to another gains nothing. Those whose client left count for nobody; refused ones are told apart: they met nothing and
missed nothing.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ultrafast.core.tiers import ServiceTier

SLICE_S = 10.0
WINDOWS_S = {"1m": 60.0, "10m": 600.0, "1h": 3600.0}
_NUM_SLICES = math.ceil(WINDOWS_S["1h"] / SLICE_S) + 1
_NUM_SAMPLES = 1000
_ARRIVED = "arrived"
_DOWNGRADED = "downgraded"
PERCENTS = (50, 90, 99)
"""The percentiles that objectives can be set for, and that are shown."""
_ARRIVAL_WINDOW_S = 60.0


class MissReason(StrEnum):
    """Where the time went that a request missed its objective by. An objective for jitter is missed between tokens: `step`.

    queue: waiting for a place. prefill: from the place to the first token. step: between tokens, in the engine. output: text,
    network and a slow reader. failed: no whole answer through our fault.
    """

    QUEUE = "queue"
    PREFILL = "prefill"
    STEP = "step"
    OUTPUT = "output"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Objectives:
    """What a request was promised, seconds; infinity = nothing."""

    ttft_s: float
    tpot_s: float
    e2e_s: float = math.inf
    jitter_s: float = math.inf


@dataclass(frozen=True, slots=True)
class CallFigures:
    """What a completed call got, seconds.

    Attributes:
        ttft_s: from its arrival to the first delta; None when it had no output.
        tpot_s: the worst mean time per output token among its choices, as its client saw them; None below two tokens.
        queue_s, prefill_s: the parts of the TTFT that were spent waiting for a place, and computing.
        compute_tpot_s: the time per output token of that same choice in the engine alone; None below two tokens.
        e2e_s: from its arrival to the last byte. decode_s: the part of it between first and last token in the engine.
        jitter_s: the largest standard deviation of the gaps among its choices; None below three gaps.
    """

    ttft_s: float | None
    tpot_s: float | None
    queue_s: float
    prefill_s: float
    compute_tpot_s: float | None
    e2e_s: float = 0.0
    decode_s: float = 0.0
    jitter_s: float | None = None


@dataclass(frozen=True, slots=True)
class Attainment:
    """Counts of one window. `num_outside`: the objectives' conditions did not hold for them; counted in nothing else.

    `num_downgraded`: of all that were served, those that another tier served.
    """

    num_met: int
    num_missed: int
    num_refused: int
    num_outside: int
    missed_by: dict[str, int]
    num_downgraded: int = 0

    @property
    def share(self) -> float | None:
        """Share of the requests that met their objectives; None when there were none."""
        total = self.num_met + self.num_missed
        return self.num_met / total if total else None


def miss_reason(figures: CallFigures, objectives: Objectives) -> MissReason | None:
    """Return why a completed call missed its objectives, or None when it met them."""
    if figures.ttft_s is not None and figures.ttft_s > objectives.ttft_s:
        return _largest_part(figures, figures.ttft_s, 0.0)
    if figures.tpot_s is not None and figures.tpot_s > objectives.tpot_s:
        is_engine = figures.compute_tpot_s is not None and figures.compute_tpot_s > objectives.tpot_s
        return MissReason.STEP if is_engine else MissReason.OUTPUT
    if figures.e2e_s > objectives.e2e_s:
        return _largest_part(figures, figures.e2e_s, figures.decode_s)
    if figures.jitter_s is not None and figures.jitter_s > objectives.jitter_s:
        return MissReason.STEP
    return None


def _largest_part(figures: CallFigures, total_s: float, decode_s: float) -> MissReason:
    output_s = total_s - figures.queue_s - figures.prefill_s - decode_s
    parts = {
        MissReason.QUEUE: figures.queue_s,
        MissReason.PREFILL: figures.prefill_s,
        MissReason.STEP: decode_s,
        MissReason.OUTPUT: output_s,
    }
    return max(parts, key=parts.__getitem__)


class SloTracker:
    """Counts of the last hour and the latest samples, per tier. Belongs to the event loop."""

    def __init__(self) -> None:
        self._slices: dict[ServiceTier, deque[tuple[int, Counter[str]]]] = {
            tier: deque(maxlen=_NUM_SLICES) for tier in ServiceTier
        }
        self._samples: dict[ServiceTier, deque[tuple[float, CallFigures]]] = {
            tier: deque(maxlen=_NUM_SAMPLES) for tier in ServiceTier
        }

    def arrived(self, tier: ServiceTier, now: float) -> float:
        """Count an arrival; returns how many came per second in the last minute, this one included."""
        self._count(tier, _ARRIVED, now)
        return self.arrivals_per_s(tier, now)

    def arrivals_per_s(self, tier: ServiceTier, now: float) -> float:
        """Return how many calls asked for a tier per second in the last minute; its begin is exact to a slice. O(1)."""
        first, total = math.floor((now - _ARRIVAL_WINDOW_S) / SLICE_S) + 1, 0
        for number, counts in reversed(self._slices[tier]):
            if number < first:
                break
            total += counts[_ARRIVED]
        return total / _ARRIVAL_WINDOW_S

    def completed(self, tier: ServiceTier, figures: CallFigures, objectives: Objectives, now: float) -> MissReason | None:
        """Count a completed call; returns why it missed, if it did."""
        reason = miss_reason(figures, objectives)
        self._count(tier, "met" if reason is None else reason, now)
        self._samples[tier].append((now, figures))
        return reason

    def missed(self, tier: ServiceTier, reason: MissReason, now: float) -> None:
        """Count a call that never got its answer."""
        self._count(tier, reason, now)

    def refused(self, tier: ServiceTier, now: float) -> None:
        self._count(tier, "refused", now)

    def downgraded(self, tier: ServiceTier, now: float) -> None:
        """Count a call that asked for this tier and was served in another; beside what it met or missed."""
        self._count(tier, _DOWNGRADED, now)

    def outside(self, tier: ServiceTier, now: float) -> None:
        """Count a call to which the objectives do not apply."""
        self._count(tier, "outside", now)

    def attainment(self, tier: ServiceTier, window_s: float, now: float) -> Attainment:
        """Return the counts of the window that ends now; its begin is exact to a slice."""
        first = math.floor((now - window_s) / SLICE_S) + 1
        total: Counter[str] = Counter()
        for number, counts in self._slices[tier]:
            if number >= first:
                total += counts
        missed_by = {reason.value: total[reason] for reason in MissReason}
        num_missed = sum(missed_by.values())
        return Attainment(total["met"], num_missed, total["refused"], total["outside"], missed_by, total[_DOWNGRADED])

    def percentiles_s(self, tier: ServiceTier, now: float) -> dict[str, dict[str, float] | None]:
        """Return P50, P90 and P99 of TTFT, TPOT, E2E and jitter of the last hour, of the latest thousand calls at most."""
        recent = [figures for at_s, figures in self._samples[tier] if at_s > now - WINDOWS_S["1h"]]
        return {
            "ttft": _percentiles([figures.ttft_s for figures in recent if figures.ttft_s is not None]),
            "tpot": _percentiles([figures.tpot_s for figures in recent if figures.tpot_s is not None]),
            "e2e": _percentiles([figures.e2e_s for figures in recent]),
            "jitter": _percentiles([figures.jitter_s for figures in recent if figures.jitter_s is not None]),
        }

    def _count(self, tier: ServiceTier, what: str, now: float) -> None:
        number = math.floor(now / SLICE_S)
        slices = self._slices[tier]
        if not slices or slices[-1][0] != number:
            slices.append((number, Counter()))
        slices[-1][1][what] += 1


def _percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """Nearest rank: each figure is one that was measured."""
    if not values:
        return None
    ordered = sorted(values)
    return {f"p{p}": ordered[math.ceil(p / 100 * len(ordered)) - 1] for p in PERCENTS}
