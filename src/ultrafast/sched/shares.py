"""Minimum shares: what keeps a less urgent tier alive while more urgent ones could take every step.

A tier that has work earns `min_share` of the time of each step and is charged for what it used of it. Once it has earned the cost
of one item (a smallest prefill chunk), it is *due*: the next step carries one item of it whatever the slack of the others, and if
all places are taken, the least urgent running request stands aside for that step (`turns`).

    credit  ____/|____/|____/|__      earns while it gets less than its share, pays for each item
                 item  item  item

Bound: a tier with work is in a step at least once in `item cost / min_share` seconds plus two steps, if KV has room for it or it
has a sequence already; else once the running ones have given back what it needs (`turns`, `kept`). What a starved tier earned is
kept for two items at most, so that it never comes back in a burst.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ultrafast.core.tiers import TierPolicy

_MAX_ITEMS_SAVED = 2.0


class Shares:
    """Seconds of step time that each tier has earned and not used; by rank.

    Attributes:
        has_credit: some tier has earned something.
    """

    def __init__(self, tiers: Sequence[TierPolicy]) -> None:
        self._min_shares = [tier.min_share for tier in tiers]
        self._credits_s = [0.0] * len(tiers)
        self._waited_s = [0.0] * len(tiers)
        self.has_credit = False

    def is_due(self, rank: int, item_s: float) -> bool:
        """Whether the tier has earned one item, which costs `item_s` seconds. Never where no share is promised."""
        return self._min_shares[rank] > 0 and self._credits_s[rank] > 0 and self._credits_s[rank] >= item_s

    def due_ranks(self, item_s: float) -> list[int]:
        """All tiers that have earned one item; the one that was in no step for longest comes first."""
        ranks = [rank for rank, credit_s in enumerate(self._credits_s) if credit_s > 0 and self.is_due(rank, item_s)]
        return sorted(ranks, key=lambda rank: -self._waited_s[rank]) if len(ranks) > 1 else ranks

    def step_finished(self, duration_s: float, wanting: Collection[int], costs_s: Sequence[float], item_s: float) -> None:
        """Book one step.

        Args:
            duration_s: how long it took.
            wanting: ranks that have work, in the step or not.
            costs_s: what each rank's part of the step costs by itself; only the proportions matter.
            item_s: what one item costs.
        """
        total_s = sum(costs_s)
        for rank, share in enumerate(self._min_shares):
            if rank not in wanting:
                self._credits_s[rank] = self._waited_s[rank] = 0.0
                continue
            self._waited_s[rank] = 0.0 if costs_s[rank] > 0 else self._waited_s[rank] + duration_s
            used_s = duration_s * costs_s[rank] / total_s if total_s > 0 else 0.0
            credit_s = self._credits_s[rank] + share * duration_s - used_s
            self._credits_s[rank] = min(max(credit_s, 0.0), _MAX_ITEMS_SAVED * max(item_s, share * duration_s))
        self.has_credit = any(self._credits_s)
