"""When a client is told to come back after queues that drained by waiting in vain: on simulated time."""

from __future__ import annotations

from dataclasses import replace

from tests.sim.harness import Simulation, make_limits, make_request

from ultrafast.core.events import DropReason, RequestFinished
from ultrafast.core.request import RequestSlo
from ultrafast.core.tiers import DEFAULT_POLICIES, ServiceTier
from ultrafast.engine.fake import FakeCost
from ultrafast.sched.drain import Drain

DEFAULT = ServiceTier.DEFAULT


def _simulation(**policy: object) -> Simulation:
    """One place, whose first holder keeps it for more than a minute."""
    tiers = list(DEFAULT_POLICIES)
    tiers[DEFAULT.rank] = replace(tiers[DEFAULT.rank], **policy)  # type: ignore[arg-type]
    limits = make_limits(max_num_running=1, tiers=tuple(tiers), kv_capacity_tokens=8000, max_request_tokens=8000)
    simulation = Simulation(limits, cost=FakeCost(fixed_s=0.05))
    _add(simulation, "holder", output=3000)
    simulation.step()
    return simulation


def _add(simulation: Simulation, name: str, output: int = 5, slo: RequestSlo | None = None) -> RequestFinished | None:
    simulation.add(make_request(name, 20, output, arrival_s=simulation.clock(), slo=slo))
    return simulation.finished.get(name)


def _burst(simulation: Simulation, name: str, num: int) -> list[float]:
    """Add requests at once; returns what the refused were told."""
    ends = [_add(simulation, f"{name}{i}") for i in range(num)]
    return [end.retry_after_s for end in ends if end is not None and end.retry_after_s is not None]


def _step_for(simulation: Simulation, duration_s: float) -> None:
    end_s = simulation.clock() + duration_s
    simulation.step_until(lambda: simulation.clock() >= end_s, max_steps=5000)


def _expired(simulation: Simulation) -> list[RequestFinished]:
    return [event for event in simulation.finished.values() if event.drop_reason is DropReason.QUEUE_TIMEOUT]


def test_a_queue_that_drains_by_expiry_is_said_to_drain_as_fast_as_it_did() -> None:
    """Forty leave within five seconds, none of them to a place: forty clients come back over about five seconds."""
    simulation = _simulation(queue_ttl_s=5.0, max_num_waiting=40)
    _burst(simulation, "r", 40)
    simulation.step_until(lambda: len(_expired(simulation)) == 40)
    told = sorted(event.retry_after_s or 0.0 for event in _expired(simulation))
    assert told[0] >= 1.0
    assert 3.0 <= told[-1] <= 10.0, "spread over the time in which so many left, not over minutes"
    assert len({round(wait_s, 2) for wait_s in told[10:]}) > 20, "and not as a herd"


def test_a_starved_queue_that_only_few_leave_is_still_said_to_be_slow() -> None:
    simulation = _simulation(queue_ttl_s=50.0, max_num_waiting=4)
    _burst(simulation, "r", 4)
    _step_for(simulation, 45.0)
    (told,) = _burst(simulation, "late", 1)
    assert told > 10.0, "nobody left in 45 s"


def test_the_second_burst_is_not_told_of_the_slots_of_the_first() -> None:
    simulation = _simulation(queue_ttl_s=40.0, max_num_waiting=4)
    _burst(simulation, "r", 4)
    _step_for(simulation, 30.0)
    assert max(_burst(simulation, "refused", 60)) > 60.0, "not one has left in 30 s"
    simulation.step_until(lambda: len(_expired(simulation)) == 4)
    simulation.abort("holder")
    simulation.run()
    simulation.clock.advance(15.0)  # idle: whoever comes gets a place at once
    assert _add(simulation, "next", output=200) is None
    simulation.step()
    told = _burst(simulation, "second", 10)
    assert len(told) >= 4
    assert max(told) <= 15.0, "the queue was empty: what was measured and promised before it is over"


def test_places_that_come_quickly_are_believed_after_a_slow_hour() -> None:
    simulation = _simulation(queue_ttl_s=300.0, max_num_waiting=8)
    _burst(simulation, "r", 8)
    _step_for(simulation, 60.0)
    simulation.abort("holder")
    simulation.step_until(lambda: simulation.scheduler.num_waiting == 0)
    simulation.run()
    for number in range(30):  # the queue is short-lived now: each place is free again after a moment
        _burst(simulation, f"b{number}-", 4)
        simulation.run()
        simulation.clock.advance(0.5)
    told = _burst(simulation, "now", 12)
    assert told
    assert max(told) <= 5.0


def test_places_that_come_no_more_are_noticed_though_they_came_quickly_before() -> None:
    simulation = _simulation(queue_ttl_s=300.0, max_num_waiting=8)
    simulation.abort("holder")
    for number in range(60):
        _burst(simulation, f"b{number}-", 4)
        simulation.run()
    _add(simulation, "holder again", output=3000)
    simulation.step()
    _burst(simulation, "r", 8)
    _step_for(simulation, 5.0)
    (told,) = _burst(simulation, "refused", 1)
    assert told >= 8.0, "none of eight has left in five seconds, and a quarter of them is ahead"


def test_those_who_leave_by_themselves_make_room_as_well() -> None:
    simulation = _simulation(queue_ttl_s=300.0, max_num_waiting=20)
    _burst(simulation, "r", 20)
    _step_for(simulation, 20.0)
    for i in range(20):
        simulation.abort(f"r{i}")
    _burst(simulation, "again", 20)
    told = _burst(simulation, "refused", 10)
    assert max(told) <= 20.0, "twenty left in twenty seconds; a quarter of the queue and ten others are ahead"


def test_advice_stays_within_its_bounds_whatever_happened() -> None:
    simulation = _simulation(queue_ttl_s=0.5, max_num_waiting=300)
    for number in range(6):
        told = _burst(simulation, f"b{number}-", 400)
        _step_for(simulation, 1.0)
        told += [event.retry_after_s or 0.0 for event in _expired(simulation)]
        assert all(1.0 <= wait_s <= 120.0 for wait_s in told)
        assert not number or max(told) <= 10.0, "hundreds leave each second"


def test_those_who_are_promised_nothing_do_not_come_back_as_a_herd() -> None:
    drain = Drain(1)
    for second in range(200):
        drain.step_finished(1.0, [0], [10], now=float(second))
    told = [drain.retry_after_s(0, None, now=200.0) for _ in range(61)][1:]  # the first slot may be near
    in_turn = [sum(begin <= wait_s < begin + 12.0 for wait_s in told) for begin in (60.0, 72.0, 84.0, 96.0, 108.0)]
    assert sum(in_turn) + told.count(120.0) == 60
    assert max(in_turn) <= 14, "spread over a minute: twelve in twelve seconds, and no more than the golden ratio is uneven"
