"""Prompt lookup: where the last tokens of a text stood before in it, and what followed them there.

    ... the quick brown fox jumps ...  ... the quick brown | ?
             ^^^^^^^^^^^ found            ^^^^^^^^^^^ looked up          draft: fox jumps ...

Each position is indexed once, by the MIN_MATCH tokens that end there; longer matches are found by walking back from there, so
adding a token costs one dictionary entry whatever the longest match is.
"""

from __future__ import annotations

from typing import NamedTuple

MIN_MATCH = 3
MAX_MATCH = 12
_MAX_CANDIDATES = 4
"""Earlier occurrences that are compared, the latest first."""
_MAX_INDEXED_AT_ONCE = 1024
"""Tokens indexed per call: about a millisecond, so that a long prompt does not stretch a step."""
_BITS = 24


class Continuation(NamedTuple):
    """What followed the same `num_matched` tokens before."""

    tokens: tuple[int, ...]
    num_matched: int


class NgramIndex:
    """An index over one growing token list, which stays the caller's. Tokens already seen must not change."""

    def __init__(self) -> None:
        self._latest: dict[int, int] = {}
        self._earlier: list[int] = []  # by end position: the previous end of the same n-gram, -1 = none

    def find(self, tokens: list[int], max_tokens: int) -> Continuation | None:
        """Continue `tokens` by what followed their longest repeated ending.

        Returns:
            1 to `max_tokens` tokens; None when nothing repeats, or while a long text is still being indexed.
        """
        if max_tokens < 1 or not self._index(tokens):
            return None
        best, best_end = 0, -1
        candidate = self._earlier[-1]
        for _ in range(_MAX_CANDIDATES):
            if candidate < 0 or best == MAX_MATCH:
                break
            num_matched = _match_back(tokens, candidate)
            if num_matched > best:
                best, best_end = num_matched, candidate
            candidate = self._earlier[candidate]
        if best < MIN_MATCH:
            return None
        return Continuation(_copy(tokens, best_end + 1, max_tokens), best)

    def _index(self, tokens: list[int]) -> bool:
        """Take in new tokens; True when there are none left."""
        begin = len(self._earlier)
        end = min(len(tokens), begin + _MAX_INDEXED_AT_ONCE)
        latest, earlier = self._latest, self._earlier
        for i in range(begin, end):
            if i < MIN_MATCH - 1:
                earlier.append(-1)
                continue
            key = (tokens[i - 2] << 2 * _BITS) | (tokens[i - 1] << _BITS) | tokens[i]
            earlier.append(latest.get(key, -1))
            latest[key] = i
        return bool(earlier) and end == len(tokens)


def _match_back(tokens: list[int], end: int) -> int:
    """How many tokens up to and including position `end` equal those at the end of the text; at most MAX_MATCH."""
    count, last = 0, len(tokens) - 1
    while count < MAX_MATCH and count <= end and tokens[end - count] == tokens[last - count]:
        count += 1
    return count


def _copy(tokens: list[int], begin: int, count: int) -> tuple[int, ...]:
    """`count` tokens from `begin`; a copy that reaches the end of the text goes on with itself (a loop in the text)."""
    copied = tokens[begin : begin + count]
    period = len(copied)
    while len(copied) < count:
        copied.append(copied[-period])
    return tuple(copied)
