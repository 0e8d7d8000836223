"""The chunk policy: whose prefill tokens a step carries, among requests of one urgency.

    budget  |pppppppp|pppp|pppppp|          budget  |pppppppppppppppppp|pp|
             short    ...  first due:                first due, pressed: all that it needs
                           at least a quarter

Short prefills go before long ones (a 50-token prompt does not wait for a 4,000-token one) while the one whose first token is due
first has the time. When it would be late otherwise, and still need not be, it is *pressed*: it goes first. When it has no hope
it gets a quarter, so that no stream of others can starve it, and the first due of those that have some may be pressed instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from ultrafast.sched.live import LiveRequest

FALLBACK_CHUNK_TOKENS = 32
"""Chunk before the cost model has seen a prefill: safe on a CPU, and only for a few steps on a GPU."""
MIN_CHUNK_TOKENS = 16
MAX_PREFILLS_PER_STEP = 4
TILE_TOKENS = 64
"""Attention over earlier tokens is computed in tiles of so many rows; fewer take a slower way: after 1,500 tokens 61 took 325 ms,
64 took 245."""
FIRST_DUE_SHARE = 4
"""The prefill with the nearest deadline gets at least 1/FIRST_DUE_SHARE of the chunk budget."""
IDLE_STRETCH = 2.0
"""With nobody decoding, a step may take this many times step_target_s: only other prefills wait for it."""
ALONE_STRETCH = 10.0
"""A prefill that is the only request there is: nobody waits for it except a new arrival. On a CPU, chunks of 16 tokens cost a
quarter more than chunks of 128 once some hundred tokens precede them (attention is computed in tiles)."""
DECODE_STRETCH = 3.0
DUE_SHARE = 0.9
"""Beside streams whose objectives leave the time, a step that gives way may take so many times step_target_s, and so much of
what is left until the first of their tokens is due: a prompt then takes fewer steps, each of which costs the streams a gap."""
INTERRUPTIBLE_STRETCH = 20.0
"""The same where a new arrival can break the step off: chunks of 256 tokens cost another 3-5 % less."""

_order = attrgetter("order")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prefill tokens given to one request in one step."""

    live: LiveRequest
    num_tokens: int


class Prefills:
    """Those of one urgency that have more than one token to compute, looked at once per step: hundreds may be there.

    Args:
        lives: at least one.

    Attributes:
        lengths: what is left to compute of each. first_due: the one whose first token is due first.
    """

    __slots__ = ("first_due", "lengths", "lives")

    def __init__(self, lives: list[LiveRequest]) -> None:
        self.lives = lives
        self.lengths = [len(live.tokens) - live.num_computed for live in lives]
        self.first_due = _first_due(lives)


def next_length(num_left: int, budget: int) -> int:
    """How many of a prompt's tokens to take: as many as may be, but what is left for a last chunk should fill a tile."""
    num_over = num_left - budget
    if 0 < num_over < TILE_TOKENS and budget >= 2 * TILE_TOKENS:
        return num_left - TILE_TOKENS
    return min(budget, num_left)


def divide(budget: int, prefills: Prefills, pressed: LiveRequest | None = None) -> list[Chunk]:
    """Give the budget to at most `MAX_PREFILLS_PER_STEP` prefills, in the order in which they should be served.

    The order is fewest tokens remaining first, after `pressed` (one of them), if there is such; the one whose deadline is nearest
    is sure of a share. Sum of the chunks <= budget.
    """
    if budget <= 0:
        return []
    lives, first_due = prefills.lives, prefills.first_due
    if len(lives) == 1:
        return [Chunk(first_due, next_length(first_due.num_remaining, budget))]
    promised = min(first_due.num_remaining, max(1, budget // FIRST_DUE_SHARE))
    shortest = _shortest(prefills, MAX_PREFILLS_PER_STEP)
    sure = [first_due] if pressed is None or pressed is first_due else [first_due, pressed]
    chosen = [live for live in shortest if live not in sure][: MAX_PREFILLS_PER_STEP - len(sure)]
    ordered = sorted([*sure, *chosen], key=_length_key)
    if pressed is not None:
        ordered.remove(pressed)
        ordered.insert(0, pressed)
    return _fill(budget, promised, first_due, ordered)


def due_key(live: LiveRequest) -> tuple[float, int]:
    """Whose first token is due first."""
    return (live.arrival_s + live.ttft_s, live.order)


def _length_key(live: LiveRequest) -> tuple[int, int]:
    return (len(live.tokens) - live.num_computed, live.order)


def _first_due(lives: list[LiveRequest]) -> LiveRequest:
    deadlines_s = [live.arrival_s + live.ttft_s for live in lives]
    first_s = min(deadlines_s)
    if deadlines_s.count(first_s) == 1:
        return lives[deadlines_s.index(first_s)]
    return min([live for live in lives if live.deadline_s == first_s], key=_order)


def _shortest(prefills: Prefills, count: int) -> list[LiveRequest]:
    """The first `count` by `_length_key`: numbers are sorted, not requests."""
    longest = sorted(prefills.lengths)[min(count, len(prefills.lengths)) - 1]
    candidates = [live for live, length in zip(prefills.lives, prefills.lengths, strict=True) if length <= longest]
    return sorted(candidates, key=_length_key)[:count]


def _fill(budget: int, promised: int, first_due: LiveRequest, ordered: list[LiveRequest]) -> list[Chunk]:
    chunks: list[Chunk] = []
    kept_back = promised
    for live in ordered:
        if live is first_due:
            kept_back = 0
        num_tokens = min(live.num_remaining, budget - kept_back)
        if num_tokens > 0:
            chunks.append(Chunk(live, num_tokens))
            budget -= num_tokens
    return chunks
