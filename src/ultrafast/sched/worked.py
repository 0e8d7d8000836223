"""A step's work, looked at once when it is booked: how much of what it was, and what each tier's part of it cost.

|decode|decode|chunk ....|chunk that ends a prompt .....|        a *decode* computes exactly one token and draws the next
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ultrafast.core.step import SequenceWork
from ultrafast.sched.cost import Row
from ultrafast.sched.live import LiveRequest


class Worked:
    """Counts of one step.

    Args:
        work: of its plan.
        live_of: every request alive before the result is booked.
        coefficients: of the cost model.
        num_ranks: number of tiers.

    Attributes:
        pairs: the work of those who are alive, in the order of the plan.
        num_decodes: see above. num_outputs: all that draw. num_prefill_tokens: tokens of everything but the decodes.
        num_drafts: guesses, not counted as tokens.
        costs_s: what each rank's part costs by itself; only the proportions matter.
    """

    __slots__ = ("costs_s", "num_decodes", "num_drafts", "num_outputs", "num_prefill_tokens", "pairs")

    def __init__(
        self, work: Sequence[SequenceWork], live_of: Mapping[str, LiveRequest], coefficients: Row, num_ranks: int
    ) -> None:
        _, output_s, token_s = coefficients
        num_decodes = num_outputs = num_prefill_tokens = num_drafts = 0
        costs_s = [0.0] * num_ranks
        pairs: list[tuple[LiveRequest, SequenceWork]] = []
        for item in work:  # several times as fast as one loop for each of these
            num_tokens = len(item.tokens)
            num_outputs += item.samples
            if num_tokens == 1 and item.samples:
                num_decodes += 1
                num_drafts += len(item.drafts)
                cost_s = output_s
            else:
                num_prefill_tokens += num_tokens
                cost_s = token_s * num_tokens
            live = live_of.get(item.request_id)
            if live is not None:
                pairs.append((live, item))
                costs_s[live.rank] += cost_s
        self.pairs = pairs
        self.costs_s = costs_s
        self.num_decodes = num_decodes
        self.num_outputs = num_outputs
        self.num_prefill_tokens = num_prefill_tokens
        self.num_drafts = num_drafts
