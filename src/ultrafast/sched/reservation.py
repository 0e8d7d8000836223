"""Predictive reservation: room held back for more urgent tiers whose requests are likely to come, learnt from those that came.

    arrivals of a tier     |  |    | |      |   |          rate: a count that fades with a half-life of about a minute
    likely to come         k = smallest count that a Poisson process of that rate does not exceed in 5 s, nine times in ten
    held back              k places, k times the KV that its requests took, and the share of the step time that they need

What is held back for a tier is held back from less urgent ones only, and only from those that start: nobody is displaced for it
alone, an item that a tier is owed (`shares`) may use it, and a request that finds nobody else's KV on the device always starts.

A place is held back only where no running request could be paused for an arrival, which costs nothing. The step share shortens
the steps of less urgent tiers: an arrival waits for the step under way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ultrafast.core.events import Reserved
from ultrafast.sched.cost import CostModel
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.live import LiveRequest

MEMORY_S = 60.0
"""An arrival counts 1/e after so long."""
HORIZON_S = 5.0
"""Room is held for what may come within so long; later arrivals find what others have left by then."""
ENOUGH = 0.9
MAX_SHARE = 4
"""At most 1/MAX_SHARE of the pool and of the places is held back."""
MAX_STEP_SHARE = 0.5
MIN_STEP_SHARE = 0.01
_WEIGHT = 0.2
_ROUNDING = 1e-9


@dataclass(slots=True)
class _Tier:
    """What is known of one tier. Counts are means over its requests; `num_arrivals` fades."""

    num_arrivals: float = 0.0
    at_s: float = 0.0
    num_prompt: float = 0.0
    num_output: float = 0.0
    is_measured: bool = False
    num_likely: int = 0
    num_tokens: int = 0
    step_share: float = 0.0
    unchanged: tuple[float, float] = (0.0, 0.0)
    is_quiet: bool = True

    def rate(self, now: float) -> float:
        """Arrivals per second."""
        return self.num_arrivals * math.exp(-max(0.0, now - self.at_s) / MEMORY_S) / MEMORY_S


class Reservations:
    """Owned by the scheduler's state; one record per rank. Holds nothing back when the limits say so."""

    def __init__(self, limits: SchedulerLimits, cost: CostModel) -> None:
        self._limits = limits
        self._cost = cost
        self._tiers = [_Tier() for _ in limits.tiers]
        self._is_quiet = True

    def arrived(self, live: LiveRequest, now: float) -> None:
        """A request came, whatever becomes of it; also one that is refused as an inquiry, whose own size nobody knows."""
        tier = self._tiers[live.rank]
        tier.num_arrivals = tier.rate(now) * MEMORY_S + 1.0
        tier.at_s = now
        tier.is_quiet = False
        if not (tier.is_measured or live.request.is_inquiry):
            num_output = min(live.request.params.max_tokens, self._limits.reserve_tokens)
            tier.num_prompt, tier.num_output = float(live.num_tokens), float(num_output)

    def finished(self, live: LiveRequest) -> None:
        """A request was served to its end: what it took is what its tier's next ones are thought to take."""
        tier = self._tiers[live.rank]
        num_prompt = live.request.num_prompt_tokens - (live.num_cached_first or 0)
        weight = _WEIGHT if tier.is_measured else 1.0
        tier.is_measured = True
        tier.num_prompt += weight * (num_prompt - tier.num_prompt)
        tier.num_output += weight * (live.num_output - tier.num_output)

    def update(self, now: float) -> None:
        """Decide afresh what is held back; once per plan."""
        if not self._limits.enable_reservation:
            return
        self._is_quiet = True
        num_tokens = self._limits.kv_capacity_tokens // MAX_SHARE
        _, output_s, token_s = self._cost.coefficients
        for tier in self._tiers[:-1]:  # nobody is less urgent than the last
            if tier.is_quiet:
                continue
            rate = tier.rate(now)
            mean = rate * HORIZON_S
            if not tier.unchanged[0] < mean < tier.unchanged[1]:
                tier.num_likely, tier.unchanged = likely(mean)
            tier.num_tokens = min(num_tokens, math.ceil(tier.num_likely * (tier.num_prompt + tier.num_output)))
            num_tokens -= tier.num_tokens
            work_s = tier.num_prompt * token_s + tier.num_output * output_s
            tier.step_share = min(MAX_STEP_SHARE, max(MIN_STEP_SHARE, rate * work_s)) if tier.num_likely else 0.0
            tier.is_quiet = not tier.num_likely  # and so it stays until the next arrival: the rate only falls
            self._is_quiet &= tier.is_quiet

    def num_tokens(self, rank: int) -> int:
        """Cells that a request of this rank must leave."""
        return 0 if self._is_quiet else sum(tier.num_tokens for tier in self._tiers[:rank])

    def num_places(self, rank: int, num_pausable: int) -> int:
        """Places that a request of this rank must leave when so many running requests could be paused."""
        if self._is_quiet:
            return 0
        num_wanted = sum(tier.num_likely for tier in self._tiers[:rank]) - num_pausable
        return max(0, min(num_wanted, self._limits.max_num_running // MAX_SHARE))

    def step_share(self, rank: int) -> float:
        """Share of the target step time that work of this rank must leave; 0 = nobody more urgent is likely to come."""
        return 0.0 if self._is_quiet else min(MAX_STEP_SHARE, sum(tier.step_share for tier in self._tiers[:rank]))

    def report(self) -> tuple[Reserved, ...]:
        """What is held back at present, for each tier for which anything is."""
        if self._is_quiet:
            return ()
        return tuple(
            Reserved(self._limits.order[rank], tier.num_likely, tier.num_tokens, tier.step_share)
            for rank, tier in enumerate(self._tiers)
            if tier.num_likely
        )


def likely(mean: float) -> tuple[int, tuple[float, float]]:
    """Return the smallest count that a Poisson variable of this mean does not exceed with probability `ENOUGH`.

    And an open interval of means for which it is the same: P(N <= k) falls by P(N = k) per unit of the mean, which is at most
    1 / sqrt(2 pi k) (Stirling). So what lies between `ENOUGH` and the probabilities of k and k - 1 says how far the mean may go.
    """
    count, term = 0, math.exp(-mean)
    total = term
    while total < ENOUGH and term > 0.0:
        count += 1
        term *= mean / count
        total += term
    if term <= 0.0:
        return math.ceil(mean), (0.0, 0.0)
    up = (total - ENOUGH - _ROUNDING) * math.sqrt(2 * math.pi * max(count, 1 / (2 * math.pi)))
    if not count:
        return count, (-1.0, mean + up)
    down = (ENOUGH - (total - term) - _ROUNDING) * math.sqrt(2 * math.pi * max(count - 1, 1 / (2 * math.pi)))
    return count, (mean - down, mean + up)
