"""What is remembered of one request's repetitions: its index, and how far they can be trusted.

A text that is being copied and a text that merely repeats a phrase look the same for three tokens and different for ten, so
short, middle and long matches are different kinds of guesses.
"""

from __future__ import annotations

from ultrafast.sched.speculation.ngrams import MIN_MATCH, Continuation, NgramIndex
from ultrafast.sched.speculation.trust import Trust

MAX_DRAFTS = 8
_PRIORS = (0.6, 0.85, 0.95)
_MIDDLE_MATCH = MIN_MATCH + 2
_LONG_MATCH = 8


class Track(Trust):
    """One request's index, acceptance and measured gain."""

    def __init__(self) -> None:
        super().__init__(_PRIORS)
        self._index = NgramIndex()

    def look_up(self, tokens: list[int], max_drafts: int) -> Continuation | None:
        """What may follow; None when nothing is known to, or while the request is off."""
        found = self._index.find(tokens, min(max_drafts, MAX_DRAFTS))
        if found is None or not self._is_off:
            return found
        self.pass_over()
        return None


def kind_of(found: Continuation) -> int:
    """The kind of a guess, for `Trust`: 0 short, 1 middle, 2 long match."""
    return (found.num_matched >= _MIDDLE_MATCH) + (found.num_matched >= _LONG_MATCH)
