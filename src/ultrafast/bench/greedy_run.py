"""Is a greedy output that of plain greedy decoding? The rule by which tests and benchmarks decide it.

Batching, chunking and reused KV change logits slightly (floats are added in another order), so greedy output may differ where two
tokens are nearly equally likely, and nothing can be said of what follows such a parting: it continues another text.

    position      0    1    2    3    4    5
    lead          8.1  0.4  3.0  0.2  5.5  6.1     of the first token over the second, natural-log probability
    plain         a    b    c    d    e    f
    other         a    b    c    x    y    z
                  =    -    =    -    ?    ?       = compared and equal, - filtered (a near-tie), ? unknown (after a parting)
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

MARGIN = 1.5
"""A token that leads by less may lose its lead to rounding."""

Token = TypeVar("Token", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Agreement:
    """What came of the positions of one or more outputs; each is one of compared, filtered and unknown."""

    num_compared: int = 0
    num_agreed: int = 0
    num_filtered: int = 0
    num_unknown: int = 0

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(
            self.num_compared + other.num_compared,
            self.num_agreed + other.num_agreed,
            self.num_filtered + other.num_filtered,
            self.num_unknown + other.num_unknown,
        )

    @property
    def percent(self) -> float:
        """Share of the compared positions that are equal; NaN when nothing was compared."""
        return 100.0 * self.num_agreed / self.num_compared if self.num_compared else float("nan")


@dataclass(frozen=True)
class GreedyRun(Generic[Token]):
    """Plain greedy decoding: tokens and, for each, by how much it led the runner-up (logit or natural-log probability)."""

    tokens: Sequence[Token]
    margins: Sequence[float]

    def compare(self, tokens: Sequence[Token]) -> Agreement:
        """Compare position by position; one that is missing differs, and so does one beyond the end of this run."""
        num_agreed = num_filtered = 0
        length = max(len(self.tokens), len(tokens))
        for at in range(length):
            is_near_tie = at < len(self.margins) and self.margins[at] < MARGIN
            is_equal = at < min(len(self.tokens), len(tokens)) and self.tokens[at] == tokens[at]
            num_filtered += is_near_tie
            num_agreed += is_equal and not is_near_tie
            if not is_equal:
                num_compared = num_agreed + (not is_near_tie)
                return Agreement(num_compared, num_agreed, num_filtered, length - at - 1)
        return Agreement(num_agreed, num_agreed, num_filtered)

    def agrees_with(self, tokens: Sequence[Token]) -> bool:
        """Whether nothing that could be compared differs, as far as both go."""
        length = min(len(self.tokens), len(tokens))
        found = GreedyRun(self.tokens[:length], self.margins[:length]).compare(tokens[:length])
        return found.num_agreed == found.num_compared
