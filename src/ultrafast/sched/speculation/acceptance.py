"""How likely a guess is right, learnt for each kind of guess: a fading count on top of a prior belief."""

from __future__ import annotations

from collections.abc import Sequence

_PRIOR_WEIGHT = 8.0
"""Drafts that the prior counts for."""
_FORGET = 0.9
"""Per step with drafts of that kind."""


class Acceptance:
    """Probabilities of drafts; `priors` has one entry for each kind, and kinds are its indices."""

    def __init__(self, priors: Sequence[float]) -> None:
        self._priors = tuple(priors)
        self._right = [0.0] * len(priors)
        self._tried = [0.0] * len(priors)

    def probability(self, kind: int) -> float:
        """That a draft token is right when the ones before it were; in (0, 1)."""
        return (self._right[kind] + self._priors[kind] * _PRIOR_WEIGHT) / (self._tried[kind] + _PRIOR_WEIGHT)

    def observe(self, kind: int, num_drafts: int, num_accepted: int) -> None:
        """Learn from one verified run; drafts behind the first wrong one say nothing."""
        self._right[kind] = self._right[kind] * _FORGET + num_accepted
        self._tried[kind] = self._tried[kind] * _FORGET + min(num_accepted + 1, num_drafts)
