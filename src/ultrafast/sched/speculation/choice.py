"""How many drafts pay: the number that makes most tokens per second of the whole step, if that is worth it at all.

With acceptance probability p, draft number j (from 1) of a request yields p^j tokens on average. For each total of drafts the
best division among the requests takes the largest of these first; the step times say what that total costs, and where a draft
model makes the drafts, what making them costs is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

MIN_GAIN = 1.05
"""Tokens per second with drafts over those without: below this, drafts are left out."""


class Offer(NamedTuple):
    """What one request could guess: up to `max_drafts` tokens, each right with probability `probability`.

    `num_unread` > 0: the draft model makes them, after it has read so many tokens.
    """

    max_drafts: int
    probability: float
    num_unread: int = 0


class Drafted(NamedTuple):
    """What the draft model does for one request: tokens to read, tokens to guess."""

    num_unread: int
    num_drafts: int


class Choice(NamedTuple):
    """One number of drafts for each offer; `gain` is the expected one, 1 when all are 0."""

    lengths: list[int]
    gain: float


def _costs_nothing(_: Sequence[Drafted]) -> float:
    return 0.0


def choose_lengths(
    offers: Sequence[Offer],
    num_decodes: int,
    room: int,
    limit_s: float,
    step_s: Callable[[int], float],
    drafting_s: Callable[[Sequence[Drafted]], float] = _costs_nothing,
) -> Choice:
    """Choose each offer's number of drafts.

    Args:
        offers: one for each request that could guess.
        num_decodes: decodes in the step, those without an offer included.
        room: drafts that the step can hold.
        limit_s: drafting and the step together must not be expected to take longer.
        step_s: expected duration of a step with so many rows.
        drafting_s: expected duration of the draft model's work before it.

    Returns:
        all 0 when no choice is expected to gain MIN_GAIN.
    """
    values = sorted(
        ((offer.probability**j, -j, i) for i, offer in enumerate(offers) for j in range(1, offer.max_drafts + 1)), reverse=True
    )
    num_tokens = float(num_decodes)
    plain_rate = num_decodes / step_s(num_decodes)
    best_rate, best = MIN_GAIN * plain_rate, [0] * len(offers)
    lengths = [0] * len(offers)
    for count, (value, _, i) in enumerate(values[: max(0, room)], start=1):
        num_tokens += value
        lengths[i] += 1
        paired = zip(offers, lengths, strict=True)
        work = [Drafted(offer.num_unread, length) for offer, length in paired if offer.num_unread and length]
        duration_s = step_s(num_decodes + count) + drafting_s(work)
        if duration_s <= limit_s and num_tokens / duration_s > best_rate:
            best_rate, best = num_tokens / duration_s, list(lengths)
    return Choice(best, best_rate / plain_rate if any(best) else 1.0)
