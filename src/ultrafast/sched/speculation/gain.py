"""What guessing was worth lately: the time that its tokens would have taken without, over the time that they took."""

from __future__ import annotations

_FORGET = 0.98


class Gain:
    """Fading sums, seconds."""

    def __init__(self) -> None:
        self._plain_s = 0.0
        self._spent_s = 0.0

    @property
    def value(self) -> float:
        """1 = as fast as without; 0 = not measured yet."""
        return self._plain_s / self._spent_s if self._spent_s else 0.0

    def book(self, plain_s: float, spent_s: float) -> None:
        """Add one step: `plain_s` its tokens would have taken without guessing, `spent_s` went into it."""
        if spent_s > 0:
            self._plain_s = self._plain_s * _FORGET + plain_s
            self._spent_s = self._spent_s * _FORGET + spent_s
