"""How long a child will still load, from what was measured: the progress of this load, or the time that the one before took.

stage    |--------x------------|     a stage goes on as fast as it went: left = elapsed * (1 - x) / x
"""

from __future__ import annotations

from ultrafast.engine.messages import Loading

_MIN_FRACTION = 0.05
"""Less of a stage says nothing about the rest."""


class LoadProgress:
    """One child's load after the other. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._load_s: float | None = None
        self._stage = ""
        self._first = self._last = (0.0, 0.0)

    def begin(self, now: float) -> None:
        """A child was started."""
        self._began_s = now
        self._stage = ""

    def note(self, progress: Loading, now: float) -> None:
        """It has come so far."""
        if progress.stage != self._stage:
            self._stage = progress.stage
            self._first = (now, progress.fraction)
        self._last = (now, progress.fraction)

    def end(self, now: float) -> None:
        """It is ready."""
        if self._began_s is not None:
            self._load_s = now - self._began_s
        self._began_s = None

    def left_s(self, now: float) -> float | None:
        """Estimate how long it will still take, at least 0; None: it does not load, or nothing was measured yet.

        The time of stages that have not begun is known only from the load before.
        """
        if self._began_s is None:
            return None
        by_before_s = None if self._load_s is None else self._began_s + self._load_s - now
        estimates_s = [left_s for left_s in (by_before_s, self._left_of_stage_s(now)) if left_s is not None]
        return max(0.0, *estimates_s) if estimates_s else None

    def _left_of_stage_s(self, now: float) -> float | None:
        (first_s, first), (last_s, last) = self._first, self._last
        if not self._stage or last - first < _MIN_FRACTION:
            return None
        return (last_s - first_s) * (1.0 - last) / (last - first) - (now - last_s)
