"""How many drafts pay: the number that makes most tokens per second of the whole step, if that is worth it at all.

With acceptance probability p, draft number j (from 1) of a request yields p^j tokens on average. For each total of drafts the
best division among the requests takes the largest of these first; the step times say what that total costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

MIN_GAIN = 1.05
"""Tokens per second with drafts over those without: below this, drafts are left out."""


class Offer(NamedTuple):
    """What one request could guess: up to `max_drafts` tokens, each right with probability `probability`."""

    max_drafts: int
    probability: float


def choose_lengths(
    offers: Sequence[Offer], num_decodes: int, room: int, limit_s: float, step_s: Callable[[int], float]
) -> list[int]:
    """Choose each offer's number of drafts.

    Args:
        offers: one for each request that could guess.
        num_decodes: decodes in the step, those without an offer included.
        room: drafts that the step can hold.
        limit_s: the step must not be expected to take longer.
        step_s: expected duration of a step with so many rows.

    Returns:
        one number for each offer; all 0 when no choice is expected to gain MIN_GAIN.
    """
    values = sorted(
        ((offer.probability**j, -j, i) for i, offer in enumerate(offers) for j in range(1, offer.max_drafts + 1)), reverse=True
    )
    num_tokens = float(num_decodes)
    plain_rate = num_decodes / step_s(num_decodes)
    best_rate, best_count = MIN_GAIN * plain_rate, 0
    for count, (value, _, _) in enumerate(values[: max(0, room)], start=1):
        num_tokens += value
        duration_s = step_s(num_decodes + count)
        if duration_s <= limit_s and num_tokens / duration_s > best_rate:
            best_rate, best_count = num_tokens / duration_s, count
    lengths = [0] * len(offers)
    for _, _, i in values[:best_count]:
        lengths[i] += 1
    return lengths
