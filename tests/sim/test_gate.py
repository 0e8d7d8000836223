"""Admission on simulated time: who is refused, moved to another tier or told to come back, and that the advice is good."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.sim.harness import Simulation, make_limits, make_request

from ultrafast.core.events import DropReason, RequestFinished
from ultrafast.core.request import FinishReason, RequestSlo
from ultrafast.core.tiers import DEFAULT_POLICIES, ServiceTier
from ultrafast.sched.coming import Coming

ULTRA, DEFAULT, FLEX = ServiceTier.ULTRAFAST, ServiceTier.DEFAULT, ServiceTier.FLEX


def _simulation(tier: ServiceTier = DEFAULT, *, warm: bool = True, num_running: int = 2, **policy: object) -> Simulation:
    tiers = list(DEFAULT_POLICIES)
    tiers[tier.rank] = replace(tiers[tier.rank], **policy)  # type: ignore[arg-type]
    limits = make_limits(max_num_running=num_running, tiers=tuple(tiers), kv_capacity_tokens=8000)
    simulation = Simulation(limits)
    if warm:
        for i in range(4):
            simulation.add(make_request(f"warm{i}", 100, 8, arrival_s=simulation.clock()))
            simulation.run()
    return simulation


def _add(simulation: Simulation, name: str, prompt: int = 20, output: int = 10, **fields: object) -> RequestFinished | None:
    """Add a request now; returns its end when it was refused at once."""
    simulation.add(make_request(name, prompt, output, arrival_s=simulation.clock(), **fields))  # type: ignore[arg-type]
    return simulation.finished.get(name)


def _drop(finished: RequestFinished | None) -> DropReason | None:
    return finished.drop_reason if finished is not None else None


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    simulation = _simulation(max_num_waiting=3)
    kept = [_add(simulation, f"r{i}") for i in range(5)]
    assert kept == [None] * 5, "two places and a queue of three"
    refused = _add(simulation, "r5")
    assert _drop(refused) is DropReason.QUEUE_FULL
    assert refused is not None
    assert (refused.reason, refused.num_computed_tokens) == (FinishReason.REJECT, 0)
    assert refused.retry_after_s is not None
    assert 1.0 <= refused.retry_after_s <= 120.0
    assert _add(simulation, "other", tier=FLEX) is None, "each tier has a queue of its own"
    simulation.run()
    assert all(event.drop_reason is None for name, event in simulation.finished.items() if name != "r5")


@pytest.mark.parametrize("bound", [0, 1])
def test_places_of_less_urgent_work_are_not_the_queues(bound: int) -> None:
    """Whoever wants a short queue must not be refused for what gives way at once."""
    simulation = _simulation(ULTRA, max_num_waiting=bound, num_running=4)
    for i in range(4):
        _add(simulation, f"flex{i}", 20, 200, tier=FLEX)
    simulation.step()
    assert [_drop(_add(simulation, f"u{i}", 10, 50, tier=ULTRA)) for i in range(4 + bound)] == [None] * (4 + bound)
    simulation.step()
    assert _drop(_add(simulation, "too many", 10, 5, tier=ULTRA)) is DropReason.QUEUE_FULL, "its own hold the places now"
    simulation.run()
    assert all(simulation.finished[f"flex{i}"].reason is FinishReason.LENGTH for i in range(4))


def test_a_queue_is_bounded_in_tokens_too_but_takes_one_large_prompt() -> None:
    simulation = _simulation(max_waiting_tokens=100, num_running=1)
    assert _add(simulation, "running", 20, 50) is None
    simulation.step()
    assert _add(simulation, "large", 500) is None
    assert _drop(_add(simulation, "next", 10)) is DropReason.QUEUE_TOKENS_FULL
    simulation.run()
    assert _add(simulation, "later", 10) is None, "what left the queue counts no more"


@pytest.mark.parametrize(("num", "num_refused"), [(4, 0), (5, 1)])
def test_what_finds_a_free_place_does_not_count_against_the_bound_in_tokens(num: int, num_refused: int) -> None:
    """Sequences of one call arrive together, before a step: those who get the free places are not in the way of the others."""
    simulation = _simulation(max_waiting_tokens=200, num_running=4, max_num_waiting=50)
    ends = [_add(simulation, f"r{i}", 100) for i in range(num)]
    assert [_drop(end) for end in ends].count(DropReason.QUEUE_TOKENS_FULL) == num_refused


def test_a_wait_ends_at_its_deadline_and_a_client_can_only_shorten_it() -> None:
    simulation = _simulation(queue_ttl_s=2.0, num_running=1)
    _add(simulation, "running", 20, 1000)
    simulation.step()
    start_s = simulation.clock()
    _add(simulation, "patient", slo=RequestSlo(queue_ttl_s=50.0))
    _add(simulation, "hasty", slo=RequestSlo(queue_ttl_s=0.5))
    simulation.step_until(lambda: "patient" in simulation.finished)
    hasty, patient = simulation.finished["hasty"], simulation.finished["patient"]
    assert (hasty.reason, hasty.drop_reason) == (FinishReason.EXPIRE, DropReason.QUEUE_TIMEOUT)
    assert hasty.finished_s - start_s == pytest.approx(0.5, abs=0.1)
    assert patient.finished_s - start_s == pytest.approx(2.0, abs=0.1)
    assert simulation.scheduler.num_waiting == 0
    assert "running" not in simulation.finished, "a deadline of the queue does not end what runs"


def test_a_thousand_expired_requests_leave_nothing_behind() -> None:
    simulation = _simulation(queue_ttl_s=0.1, num_running=1)
    _add(simulation, "running", 20, 100)
    simulation.step()
    for i in range(900):
        _add(simulation, f"r{i}")
    simulation.step_until(lambda: len(simulation.finished) > 900)
    assert simulation.scheduler.num_waiting == 0
    assert simulation.scheduler._state.waiting.num_tokens_of(DEFAULT.rank) == 0
    simulation.run()
    assert _add(simulation, "fresh") is None
    simulation.run()
    assert simulation.finished["fresh"].reason is FinishReason.LENGTH


def test_a_strict_request_is_refused_for_good_when_no_idle_machine_could_serve_it_in_time() -> None:
    simulation = _simulation()
    refused = _add(simulation, "never", 400, slo=RequestSlo(ttft_s=0.5, is_strict=True))
    assert _drop(refused) is DropReason.SLO_UNREACHABLE
    assert refused is not None
    assert refused.retry_after_s is None
    assert _drop(_add(simulation, "tpot", slo=RequestSlo(tpot_s=0.001, is_strict=True))) is DropReason.SLO_UNREACHABLE
    assert _add(simulation, "lenient", 400, slo=RequestSlo(ttft_s=0.5)) is None
    simulation.run()
    assert _add(simulation, "feasible", 40, slo=RequestSlo(ttft_s=0.5, is_strict=True)) is None
    simulation.run()
    assert simulation.first_token_s("feasible") - simulation.requests["feasible"].arrival_s <= 0.5


def test_what_is_cached_counts_as_computed() -> None:
    simulation = _simulation()
    simulation.add(make_request("first", 400, 2))
    simulation.run()
    again = list(simulation.requests["first"].prompt_tokens) + [5] * 10
    simulation.add(make_request("again", again, 2, arrival_s=simulation.clock(), slo=RequestSlo(ttft_s=0.5, is_strict=True)))
    assert "again" not in simulation.finished


def test_a_strict_request_is_told_to_come_back_when_it_would_be_late_only_now() -> None:
    simulation = _simulation(num_running=1)
    for i in range(6):
        _add(simulation, f"r{i}", 100, 20)
    for _ in range(30):
        simulation.step()
    strict = RequestSlo(ttft_s=0.5, is_strict=True)
    refused = _add(simulation, "strict", slo=strict)
    assert _drop(refused) is DropReason.SLO_AT_RISK
    assert refused is not None
    assert refused.retry_after_s is not None
    assert _add(simulation, "urgent", tier=ULTRA, slo=strict) is None, "it would not have to wait for the others"


def test_a_tier_that_may_be_left_is_left_for_one_that_can_be_in_time() -> None:
    simulation = _simulation(ULTRA, is_downgradable=True)
    assert _add(simulation, "long", 200, tier=ULTRA) is None
    assert _add(simulation, "short", 10, tier=ULTRA) is None
    simulation.run()
    scheduled = {event.request_id: event for event in simulation.scheduled}
    assert (scheduled["long"].tier, scheduled["long"].downgrade_reason) == (DEFAULT, DropReason.SLO_UNREACHABLE)
    assert simulation.finished["long"].tier is DEFAULT
    assert scheduled["short"].tier is None
    assert simulation.finished["short"].tier is ULTRA


def test_a_full_queue_moves_what_may_be_moved() -> None:
    simulation = _simulation(is_downgradable=True, max_num_waiting=0, num_running=1)
    _add(simulation, "running", 20, 30)
    simulation.step()
    assert _add(simulation, "next") is None
    simulation.run()
    assert simulation.finished["next"].tier is FLEX


def test_what_was_admitted_before_a_crash_is_not_refused_after_it() -> None:
    simulation = _simulation(max_num_waiting=0, queue_ttl_s=0.01, num_running=1)
    had_place = [replace(make_request(f"r{i}", 20, 5), is_admitted=True, had_place=True) for i in range(6)]
    queued = [replace(make_request(f"q{i}", 20, 5, arrival_s=simulation.clock()), is_admitted=True) for i in range(2)]
    simulation.add(*had_place, *queued)
    assert not any(event.drop_reason for event in simulation.finished.values()), "nobody is refused"
    simulation.run()
    ends = {name: event.reason for name, event in simulation.finished.items() if not name.startswith("warm")}
    assert ends == {
        **dict.fromkeys([f"r{i}" for i in range(6)], FinishReason.LENGTH),
        "q0": FinishReason.EXPIRE,
        "q1": FinishReason.EXPIRE,
    }


def test_those_who_come_back_when_told_are_served() -> None:
    """A burst of four times what fits: of the refused, nine in ten are taken at their first retry, and not as a herd."""
    simulation = _simulation(max_num_waiting=10, num_running=4)
    returns: list[tuple[float, str]] = []
    for i in range(60):
        finished = _add(simulation, f"r{i}", 30, 10)
        if finished is not None:
            assert finished.retry_after_s is not None
            returns.append((simulation.clock() + finished.retry_after_s, f"again{i}"))
    assert len(returns) == 46
    assert max(sum(at_s <= other < at_s + 0.1 for other, _ in returns) for at_s, _ in returns) <= 10
    num_refused = 0
    for at_s, name in sorted(returns):
        while simulation.clock() < at_s and simulation.scheduler.has_work:
            simulation.step()
        simulation.clock.advance(max(0.0, at_s - simulation.clock()))
        num_refused += _add(simulation, name, 30, 10) is not None
    assert num_refused <= 0.1 * len(returns)
    simulation.run()


def test_the_order_of_the_tiers_decides_urgency_and_where_a_downgrade_goes() -> None:
    """With flex before default, a default request waits for flex, and one of flex can be downgraded to default."""
    order = (ULTRA, ServiceTier.PRIORITY, FLEX, DEFAULT)
    policies = {tier: DEFAULT_POLICIES[tier.rank] for tier in order}
    policies[FLEX] = replace(policies[FLEX], max_num_waiting=1, is_downgradable=True)
    limits = make_limits(max_num_running=1, order=order, tiers=tuple(policies[tier] for tier in order), kv_capacity_tokens=8000)
    simulation = Simulation(limits)
    assert _add(simulation, "default", tier=DEFAULT) is None
    simulation.step()
    for name in ("flex0", "flex1", "flex2"):
        assert _add(simulation, name, tier=FLEX) is None
        simulation.step()
    simulation.run()
    simulation.check_all_finished()
    served = {event.request_id: event.tier for event in simulation.scheduled}
    assert served == {"default": None, "flex0": None, "flex1": None, "flex2": DEFAULT}
    assert simulation.finished["default"].num_pauses > 0, "flex goes first here"


def test_one_of_several_sequences_is_refused_rather_than_moved() -> None:
    simulation = _simulation(is_downgradable=True, max_num_waiting=0, num_running=1)
    assert _add(simulation, "running", 20, 50) is None
    simulation.step()
    assert _add(simulation, "single") is None, "moved to a tier with room"
    assert _drop(_add(simulation, "one of two", slo=RequestSlo(is_movable=False))) is DropReason.QUEUE_FULL


def test_those_who_wait_for_the_disk_are_in_the_queue_too() -> None:
    simulation = _simulation(max_num_waiting=2, num_running=1)
    assert _add(simulation, "running", 20, 50) is None
    simulation.step()
    state = simulation.scheduler._state
    for name in ("a", "b"):
        assert _add(simulation, name) is None
        live = state.live[name]
        state.waiting.pop(live)
        state.restorer.step_aside(live)
    assert _drop(_add(simulation, "c")) is DropReason.QUEUE_FULL


def _ask(simulation: Simulation, name: str, **fields: object) -> RequestFinished:
    request = make_request(name, 1, 1, arrival_s=simulation.clock(), **fields)  # type: ignore[arg-type]
    return simulation.scheduler.answer(replace(request, is_inquiry=True), simulation.clock())


@pytest.mark.parametrize("num_ahead", range(7))
@pytest.mark.parametrize("slo", [RequestSlo(), RequestSlo(is_retry=True), RequestSlo(is_movable=False)])
@pytest.mark.parametrize("is_downgradable", [False, True])
def test_asking_first_says_what_would_become_of_the_request(num_ahead: int, slo: RequestSlo, is_downgradable: bool) -> None:
    """Two places and a queue of three; who is not refused leaves nothing behind."""
    simulation = _simulation(max_num_waiting=3, is_downgradable=is_downgradable)
    for i in range(num_ahead):
        _add(simulation, f"r{i}", slo=slo)
    asked = _ask(simulation, "asked", slo=slo)
    end = _add(simulation, "itself", slo=slo)
    assert asked.reason is (FinishReason.ABORT if end is None else FinishReason.REJECT)
    assert asked.drop_reason is _drop(end)
    assert asked.num_computed_tokens == 0
    if end is not None:
        assert asked.retry_after_s is not None
    simulation.run()


@pytest.mark.parametrize("num_ahead", range(7))
@pytest.mark.parametrize("policy", [{"max_num_waiting": 3}, {"max_waiting_tokens": 60}])
@pytest.mark.parametrize("is_downgradable", [False, True])
def test_who_is_about_to_be_added_counts_as_if_it_were(num_ahead: int, policy: dict[str, int], is_downgradable: bool) -> None:
    """Two places are taken; what has come while a step runs is not in the queue yet."""
    asked = []
    for is_added in (False, True):
        simulation = _simulation(is_downgradable=is_downgradable, **policy)
        for i in range(2):
            _add(simulation, f"running{i}", 20, 50)
        simulation.step()
        coming = Coming()
        for i in range(num_ahead):
            request = make_request(f"r{i}", 20, arrival_s=simulation.clock(), slo=RequestSlo(is_movable=False))
            if is_added:
                simulation.add(request)
            elif simulation.scheduler.answer(request, simulation.clock(), coming).reason is FinishReason.ABORT:
                coming.add(request)
        asked.append(simulation.scheduler.answer(make_request("r", 20), simulation.clock(), coming))
    assert (asked[0].reason, asked[0].drop_reason) == (asked[1].reason, asked[1].drop_reason)


def test_asking_first_is_no_promise_and_takes_no_room() -> None:
    simulation = _simulation(max_num_waiting=1, num_running=1)
    _add(simulation, "running", 20, 50)
    simulation.step()
    assert [_ask(simulation, f"asked{i}").reason for i in range(3)] == [FinishReason.ABORT] * 3
    assert _add(simulation, "one") is None
    assert _drop(_add(simulation, "two")) is DropReason.QUEUE_FULL
    assert simulation.scheduler.num_waiting == 1


def test_who_is_refused_when_asking_first_has_come_all_the_same() -> None:
    """What is held back for a tier follows from how many want to come, not from how many fit into its queue."""
    simulation = _simulation(ULTRA, max_num_waiting=1, num_running=1)
    for i in range(2):
        _add(simulation, f"r{i}", 20, 50, tier=ULTRA)
        simulation.step()
    reservations = simulation.scheduler._state.reservations
    before = reservations._tiers[ULTRA.rank].num_arrivals
    assert [_ask(simulation, f"a{i}", tier=ULTRA).reason for i in range(20)] == [FinishReason.REJECT] * 20
    assert reservations._tiers[ULTRA.rank].num_arrivals == pytest.approx(before + 20, rel=0.01)
    simulation.run()
    for i in range(20):
        assert _ask(simulation, f"b{i}", tier=ULTRA).reason is FinishReason.ABORT, "it comes itself, and counts then"
    assert reservations._tiers[ULTRA.rank].num_arrivals < before + 21
