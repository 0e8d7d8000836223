"""The chunk policy: how many prefill tokens a step carries, and whose.

    max_step_tokens  |dddd|pppppppppppppppp|..........unused...........|
                      decodes   chunk: so long that the step stays near step_target_s

On a CPU a small chunk costs nothing extra, on a GPU it does; the cost model finds out which. Short prefills go before long
ones of the same tier (a 50-token prompt does not wait for a 4,000-token one), and the longest-waiting prefill always gets a
quarter of the budget, so that a stream of short ones cannot starve it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ultrafast.sched.cost import CostModel
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.live import LiveRequest
from ultrafast.sched.ordering import arrival_key

FALLBACK_CHUNK_TOKENS = 32
"""Chunk before the cost model has seen a prefill: safe on a CPU, and only for a few steps on a GPU."""
MIN_CHUNK_TOKENS = 16
MAX_PREFILLS_PER_STEP = 4
OLDEST_SHARE = 4
"""The oldest prefill gets at least 1/OLDEST_SHARE of the chunk budget."""
IDLE_STRETCH = 2.0
"""With nobody decoding, a step may take this many times step_target_s: only other prefills wait for it."""
ALONE_STRETCH = 10.0
"""A prefill that is the only request there is: nobody waits for it except a new arrival. On a CPU, chunks of 16 tokens cost a
quarter more than chunks of 128 once some hundred tokens precede them (attention is computed in tiles)."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prefill tokens given to one request in one step."""

    live: LiveRequest
    num_tokens: int


def chunk_budget(cost: CostModel, limits: SchedulerLimits, num_decodes: int, *, is_alone: bool) -> int:
    """Prefill tokens for a step that also carries `num_decodes` decodes; at least 1 unless the decodes fill the step.

    `is_alone`: the step serves the only request that is running or waiting.
    """
    room = limits.max_step_tokens - num_decodes
    if not cost.is_fitted:
        return min(room, FALLBACK_CHUNK_TOKENS)
    stretch = 1.0 if num_decodes else ALONE_STRETCH if is_alone else IDLE_STRETCH
    target_s = limits.step_target_s * stretch
    return min(room, max(MIN_CHUNK_TOKENS, cost.prefill_tokens_within(target_s, num_decodes)))


def divide(budget: int, prefills: list[LiveRequest]) -> list[Chunk]:
    """Give the budget to at most `MAX_PREFILLS_PER_STEP` prefills, in the order in which they should be served.

    The order is that of tiers, then fewest tokens remaining. Sum of the chunks <= budget.
    """
    if budget <= 0 or not prefills:
        return []
    ordered = sorted(prefills, key=lambda live: (effective_rank(live), live.num_remaining, live.order))
    first_rank = effective_rank(ordered[0])
    oldest = min((live for live in ordered if effective_rank(live) == first_rank), key=arrival_key)
    promised = min(oldest.num_remaining, max(1, budget // OLDEST_SHARE))
    chosen = [live for live in ordered if live is not oldest][: MAX_PREFILLS_PER_STEP - 1]
    return _fill(budget, promised, oldest, [live for live in ordered if live is oldest or live in chosen])


def _fill(budget: int, promised: int, oldest: LiveRequest, ordered: list[LiveRequest]) -> list[Chunk]:
    chunks: list[Chunk] = []
    kept_back = promised
    for live in ordered:
        if live is oldest:
            kept_back = 0
        num_tokens = min(live.num_remaining, budget - kept_back)
        if num_tokens > 0:
            chunks.append(Chunk(live, num_tokens))
            budget -= num_tokens
    return chunks


def effective_rank(live: LiveRequest) -> int:
    """A prefill that more urgent requests wait for is as urgent as they are (no priority inversion)."""
    return live.rank if live.followers_rank is None else min(live.rank, live.followers_rank)
