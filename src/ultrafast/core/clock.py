"""Time as a value. Pure code takes `now`; code that must ask takes a `Clock`, so that a test or a simulation can drive it."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds since an arbitrary origin; never goes back. `time.monotonic` is one."""

    def __call__(self) -> float: ...


class ManualClock:
    """A clock that moves only when told to: for tests and simulation."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def __call__(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move forward. Raises ValueError on a negative step: time never goes back."""
        if seconds < 0:
            raise ValueError(f"cannot advance by {seconds} s")
        self._now_s += seconds
