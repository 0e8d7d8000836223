"""What the API process knows about its engine child, as values for readiness checks, metrics and logs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EngineState(StrEnum):
    """Where an engine stands.

    starting -> ready <-> restarting
        |         |           |
        +---------+-----------+--> failed (gave up; nothing is served any more) or stopped (closed by us)
    """

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """One look at an engine.

    Attributes:
        last_step_age_s: seconds since the last finished step; None when there has been none yet.
        has_work: requests have not ended yet, in the child or waiting for the next one.
        is_stalled: it should move and does not: work is pending and no step finished for `stall_after_s`, or the child is
            silent for `silence_after_s`.
        num_restarts: children lost since the first became ready, failed attempts to replace them included.
        pid: process id of the child, None when there is none at the moment.
        ready_in_s: how long the child will still load, estimated; None when it does not, or nothing was measured.
    """

    state: EngineState
    last_step_age_s: float | None
    has_work: bool
    is_stalled: bool
    num_restarts: int
    pid: int | None
    ready_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class EngineRestarted:
    """A child was lost and a new one is being started.

    Attributes:
        reason: one sentence for logs: exit code, signal, or how long it hung.
        num_live_requests: requests that wait for the new child and will go on there.
    """

    at_s: float
    reason: str
    num_live_requests: int


@dataclass(frozen=True, slots=True)
class RecoveryPolicy:
    """When to worry about a child, and how to replace it. All times in seconds.

    Attributes:
        stall_after_s: pending work and no finished step for so long: `is_stalled`.
        silence_after_s: no heartbeat for so long: `is_stalled`.
        hang_restart_s: pending work without a finished step, or silence, for so long: the child is killed and replaced.
        watch_interval_s: how often that is checked.
        max_request_crashes: a request that was in the child for so many crashes, and alone in the last, ends with an error.
        max_failed_starts: after so many children in a row that never became ready, the engine is `failed`.
        backoff_s, max_backoff_s: pause before a new child, from the second in a row that finished no step; doubles each time.
        exit_grace_s: how long a child may take to exit after Shutdown before it is killed.
    """

    stall_after_s: float = 30.0
    silence_after_s: float = 5.0
    hang_restart_s: float = 120.0
    watch_interval_s: float = 1.0
    max_request_crashes: int = 3
    max_failed_starts: int = 3
    backoff_s: float = 0.1
    max_backoff_s: float = 5.0
    exit_grace_s: float = 5.0
