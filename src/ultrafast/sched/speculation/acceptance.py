"""How likely a draft token is right, learnt per request and by how long the match behind it was.

A text that is being copied and a text that merely repeats a phrase look the same for three tokens and different for ten, so
short, middle and long matches are remembered apart. Each estimate is a fading count on top of a prior belief.
"""

from __future__ import annotations

from ultrafast.sched.speculation.ngrams import MIN_MATCH

_PRIOR = (0.6, 0.85, 0.95)
_PRIOR_WEIGHT = 8.0
"""Drafts that the prior counts for."""
_FORGET = 0.9
"""Per step with drafts of that kind."""
_MIDDLE_MATCH = MIN_MATCH + 2
_LONG_MATCH = 8


class Acceptance:
    """Probabilities of one request's drafts."""

    def __init__(self) -> None:
        self._right = [0.0] * len(_PRIOR)
        self._tried = [0.0] * len(_PRIOR)

    def probability(self, num_matched: int) -> float:
        """That a draft token is right when the ones before it were; in (0, 1)."""
        kind = _kind(num_matched)
        return (self._right[kind] + _PRIOR[kind] * _PRIOR_WEIGHT) / (self._tried[kind] + _PRIOR_WEIGHT)

    def observe(self, num_matched: int, num_drafts: int, num_accepted: int) -> None:
        """Learn from one verified run; drafts behind the first wrong one say nothing."""
        kind = _kind(num_matched)
        self._right[kind] = self._right[kind] * _FORGET + num_accepted
        self._tried[kind] = self._tried[kind] * _FORGET + min(num_accepted + 1, num_drafts)


def _kind(num_matched: int) -> int:
    return (num_matched >= _MIDDLE_MATCH) + (num_matched >= _LONG_MATCH)
