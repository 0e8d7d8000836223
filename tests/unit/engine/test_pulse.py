from __future__ import annotations

from ultrafast.core.clock import ManualClock
from ultrafast.engine.health import RecoveryPolicy
from ultrafast.engine.messages import Heartbeat
from ultrafast.engine.pulse import Pulse

POLICY = RecoveryPolicy(stall_after_s=30, silence_after_s=5, hang_restart_s=120)


def make_pulse() -> tuple[Pulse, ManualClock]:
    clock = ManualClock(1000.0)
    return Pulse(POLICY, clock), clock


def beat_for(pulse: Pulse, clock: ManualClock, seconds: int, last_step_s: float, step: int = 1, *, has_work: bool = True) -> None:
    for _ in range(seconds):
        clock.advance(1)
        pulse.beat(Heartbeat(step, last_step_s, has_work=has_work))


def test_an_idle_child_never_stalls() -> None:
    pulse, clock = make_pulse()
    beat_for(pulse, clock, 1000, last_step_s=1000.0)
    assert not pulse.is_stalled(num_sent=0)
    assert pulse.describe_hang(num_sent=0) is None
    assert pulse.last_step_age_s == 1000.0


def test_work_after_a_long_idle_time_gets_its_time() -> None:
    pulse, clock = make_pulse()
    beat_for(pulse, clock, 1000, last_step_s=1000.0)
    pulse.work_arrived()
    beat_for(pulse, clock, 30, last_step_s=1000.0)
    assert not pulse.is_stalled(num_sent=1)
    beat_for(pulse, clock, 1, last_step_s=1000.0)
    assert pulse.is_stalled(num_sent=1)
    assert pulse.describe_hang(num_sent=1) is None
    beat_for(pulse, clock, 90, last_step_s=1000.0)
    assert pulse.describe_hang(num_sent=1) == "the engine finished no step for 121 s with 1 requests pending"


def test_a_finished_step_ends_the_stall() -> None:
    pulse, clock = make_pulse()
    pulse.work_arrived()
    beat_for(pulse, clock, 40, last_step_s=1000.0)
    assert pulse.is_stalled(num_sent=1)
    pulse.step(clock())
    assert not pulse.is_stalled(num_sent=1)
    pulse.step(5.0)  # an older one, late
    assert pulse.last_step_age_s == 0.0


def test_silence_is_a_stall_and_then_a_hang_with_or_without_work() -> None:
    pulse, clock = make_pulse()
    clock.advance(5)
    assert not pulse.is_stalled(num_sent=0)
    clock.advance(1)
    assert pulse.is_stalled(num_sent=0)
    clock.advance(115)
    assert pulse.describe_hang(num_sent=0) == "the engine process gave no sign of life for 121 s"


def test_before_the_first_step_there_is_no_age() -> None:
    pulse, _ = make_pulse()
    pulse.beat(Heartbeat(0, 1000.0, has_work=False))
    assert pulse.last_step_age_s is None


def test_a_request_that_an_idle_child_has_lost_is_noticed() -> None:
    """The child beats and makes no steps, since it knows of nothing to do; what was sent to it says otherwise."""
    pulse, clock = make_pulse()
    pulse.work_arrived()
    beat_for(pulse, clock, 119, last_step_s=1000.0, has_work=False)
    assert pulse.is_stalled(num_sent=1)
    assert pulse.describe_hang(num_sent=1) is None
    beat_for(pulse, clock, 2, last_step_s=1000.0, has_work=False)
    assert (
        pulse.describe_hang(num_sent=1)
        == "the engine finished no step for 121 s with 1 requests pending, of which it knows nothing"
    )
