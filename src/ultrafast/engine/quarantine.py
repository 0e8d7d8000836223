"""Which live requests may be in a child together, once crashes suggest that one of them kills it.

Owns a decision, no processes and no time. A first crash can be anything (a signal from outside, memory): everything goes on
together. From the second crash that a request was in, it is a suspect, and suspects are tried in halves:

    crash with {a b c d}  ->  groups  {a b} {c d}        only {a b} goes to the new child
        {a b} makes progress  ->  {c d} joins them
        {a b} crashes         ->  groups  {a} {b} {c d}   and so on, until one request is alone in a child and it crashes

A request is found guilty only by a crash in which it was alone, and after `max_crashes` crashes. So a bystander of a poisonous
request never ends with an error, however often it is dragged along.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ultrafast.engine.live import LiveRequest

_MAX_TRIAL_DOUBLINGS = 20


class Quarantine:
    """Groups that wait for their trial, the group on trial, and its verdict."""

    def __init__(self, max_crashes: int) -> None:
        self._max_crashes = max_crashes
        self._waiting: deque[list[LiveRequest]] = deque()
        self._trial: list[LiveRequest] = []

    @property
    def is_active(self) -> bool:
        return bool(self._waiting or self._trial)

    @property
    def admits_newcomers(self) -> bool:
        """Requests that were never in a crash may join, unless one request has to be alone."""
        return len(self._trial) > 1 or not self.is_active

    def next_group(self) -> list[LiveRequest]:
        """Return the requests that may be sent to the child now; empty while the trial goes on or when there are none."""
        if any(not _is_cleared(live) for live in self._trial):
            return []
        self._trial = []
        while self._waiting and not self._trial:
            self._trial = self._waiting.popleft()
        return list(self._trial)

    def forget(self, live: LiveRequest) -> None:
        """The request has ended."""
        for group in (self._trial, *self._waiting):
            if live in group:
                group.remove(live)

    def on_crash(self, held: Sequence[LiveRequest]) -> LiveRequest | None:
        """Judge a crash of a child that held these unfinished requests, each already with this crash counted.

        Returns:
            the request that is guilty beyond doubt, or None. All others of `held` wait for their trial, if there is one.
        """
        if len(held) == 1 and held[0].num_crashes >= self._max_crashes:
            self.forget(held[0])
            return held[0]
        suspects = [live for live in held if live in self._trial] or [live for live in held if live.num_crashes > 1]
        if suspects or self.is_active:
            self._trial = []
            self._split(suspects)
            others = [live for live in held if live not in suspects]
            if others:
                self._waiting.append(others)
        return None

    def _split(self, suspects: list[LiveRequest]) -> None:
        """Put the halves in front. Least progress first: what kills a child early in its life produces little."""
        suspects = sorted(suspects, key=lambda live: live.num_tokens_since_send)
        middle = len(suspects) // 2
        self._waiting.extendleft(half for half in (suspects[middle:], suspects[:middle]) if half)


def _is_cleared(live: LiveRequest) -> bool:
    """It has outlived its trial. The more crashes it was in, the longer that takes, so that a rare killer is found too."""
    return live.num_tokens_since_send >= 1 << min(live.num_crashes, _MAX_TRIAL_DOUBLINGS)
