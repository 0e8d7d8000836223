"""The other side of a pair of schedulers on one machine, as the gate of this one sees it.

One tier has one queue, whichever side its requests wait on: its bounds count both. And time is shared: what is computed here
takes as much longer as the other side takes of it (see `paired` for who goes first).
"""

from __future__ import annotations

import math

from ultrafast.sched.room import Room
from ultrafast.sched.state import SchedulerState


class Beside:
    """Reads the other side's state; changes nothing."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._room = Room(state)

    def num_queued(self, rank: int) -> int:
        """Requests of a tier without a place over there."""
        return self._state.num_queued(rank)

    def num_waiting(self, rank: int) -> int:
        """Those of them that could not start at once."""
        num_queued = self._state.num_queued(rank)
        return max(0, num_queued - self._room.num_startable(rank)) if num_queued else 0

    def num_queued_tokens(self, rank: int) -> int:
        """Prompt and output tokens of all that are queued there."""
        return self._state.num_queued_tokens(rank)

    @property
    def step_s(self) -> float:
        """How long a step of the other side may be under way, seconds; 0 = it runs nothing."""
        return self._state.last_step_s if self._state.running else 0.0

    def stretch(self, rank: int) -> float:
        """How many times as long work takes on this side, whose most urgent is of this rank; infinite where it has no share."""
        other = self._state.top_rank
        if other is None:
            return 1.0
        if other == rank:
            return 2.0
        share = self._state.limits.tiers[max(rank, other)].min_share
        if other > rank:
            return 1.0 / (1.0 - share)
        return 1.0 / share if share > 0 else math.inf
