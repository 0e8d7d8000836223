"""Does the child move? What heartbeats and finished steps say, against the clock. Pure: told everything, asked for a verdict."""

from __future__ import annotations

from ultrafast.core.clock import Clock
from ultrafast.engine.health import RecoveryPolicy
from ultrafast.engine.messages import Heartbeat


class Pulse:
    """The signs of life of one child, from the moment it is spawned."""

    def __init__(self, policy: RecoveryPolicy, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock
        self._last_beat_s = clock()
        self._has_work = True  # as the child last said; before it says anything it is only slow
        self._busy_since_s: float | None = None
        self._last_step_s: float | None = None

    def beat(self, heartbeat: Heartbeat) -> None:
        self._last_beat_s = self._clock()
        self._has_work = heartbeat.has_work
        if heartbeat.step > 0:
            self.step(heartbeat.last_step_s)

    def step(self, at_s: float) -> None:
        """A step finished at that time (times are comparable between processes of one machine)."""
        if self._last_step_s is None or at_s > self._last_step_s:
            self._last_step_s = at_s

    def work_arrived(self) -> None:
        """The child got work while it had none: waiting for the first step counts from now."""
        self._busy_since_s = self._clock()

    @property
    def last_step_age_s(self) -> float | None:
        return None if self._last_step_s is None else self._clock() - self._last_step_s

    def is_stalled(self, num_sent: int) -> bool:
        is_silent = self._silence_s() > self._policy.silence_after_s
        return is_silent or self._idle_s(num_sent) > self._policy.stall_after_s

    def describe_hang(self, num_sent: int) -> str | None:
        """Return why the child must be replaced, or None."""
        limit_s = self._policy.hang_restart_s
        if (silence_s := self._silence_s()) > limit_s:
            return f"the engine process gave no sign of life for {silence_s:.0f} s"
        if (idle_s := self._idle_s(num_sent)) > limit_s:
            lost = "" if self._has_work else ", of which it knows nothing"
            return f"the engine finished no step for {idle_s:.0f} s with {num_sent} requests pending{lost}"
        return None

    def _silence_s(self) -> float:
        return self._clock() - self._last_beat_s

    def _idle_s(self, num_sent: int) -> float:
        """Seconds without a finished step although there is work; 0 without work."""
        if num_sent == 0:
            return 0.0
        since = [moment for moment in (self._busy_since_s, self._last_step_s) if moment is not None]
        return self._clock() - max(since) if since else 0.0
