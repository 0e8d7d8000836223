"""Admission where KV is short rather than places: waits are predicted, and queues bounded, by what cells there are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.sim.harness import Simulation, make_limits, make_request

from ultrafast.core.events import DropReason, RequestFinished
from ultrafast.core.request import FinishReason, RequestSlo
from ultrafast.core.tiers import DEFAULT_POLICIES, ServiceTier
from ultrafast.engine.fake import FakeCost

ULTRA, DEFAULT, FLEX = ServiceTier.ULTRAFAST, ServiceTier.DEFAULT, ServiceTier.FLEX
STRICT = RequestSlo(ttft_s=1.2, is_strict=True)


def _simulation(num_cells: int = 1000, *, cost: FakeCost | None = None, num_warm: int = 4, **policy: object) -> Simulation:
    """Eight places; with 200 prompt tokens and as many cells reserved for output, three requests fill the pool."""
    tiers = list(DEFAULT_POLICIES)
    tiers[DEFAULT.rank] = replace(tiers[DEFAULT.rank], **policy)  # type: ignore[arg-type]
    limits = make_limits(tiers=tuple(tiers), kv_capacity_tokens=num_cells, max_request_tokens=num_cells)
    simulation = Simulation(limits, cost=cost)
    for i in range(num_warm):
        simulation.add(make_request(f"warm{i}", 100, 8, arrival_s=simulation.clock()))
        simulation.run()
    return simulation


def _add(
    simulation: Simulation, name: str, prompt: int | list[int] = 200, output: int = 120, **fields: object
) -> DropReason | None:
    """Add a request now; returns why it was refused at once."""
    simulation.add(make_request(name, prompt, output, arrival_s=simulation.clock(), **fields))  # type: ignore[arg-type]
    end: RequestFinished | None = simulation.finished.get(name)
    return end.drop_reason if end is not None else None


def _fill(simulation: Simulation) -> None:
    """Twice what fits, until the second half has its places and all are decoding: the pool is full, and nobody waits."""
    for i in range(6):
        assert _add(simulation, f"r{i}", 250, 64) is None
    simulation.step_until(lambda: all(simulation.output[f"r{i}"] for i in range(6)))
    assert (simulation.scheduler.num_running, simulation.scheduler.num_waiting) == (3, 0), "there are places"


def test_who_finds_a_place_and_no_cells_would_be_late() -> None:
    simulation = _simulation()
    _fill(simulation)
    assert _add(simulation, "strict", 100, slo=STRICT) is DropReason.SLO_AT_RISK
    assert _add(simulation, "urgent", 100, 20, tier=ULTRA, slo=STRICT) is None, "others give their cells to it"
    simulation.run()
    assert _add(simulation, "later", 100, slo=STRICT) is None
    simulation.run()
    assert simulation.first_token_s("later") - simulation.requests["later"].arrival_s <= 1.2


def test_what_is_refused_for_want_of_cells_would_have_been_late() -> None:
    """The same request without the objective comes late; the prediction is no mere caution."""
    simulation = _simulation()
    _fill(simulation)
    assert _add(simulation, "lenient", 100) is None
    simulation.run()
    assert simulation.first_token_s("lenient") - simulation.requests["lenient"].arrival_s > 1.2


def test_a_first_wait_that_goes_on_is_a_measure_too() -> None:
    """Nobody has ever left the queue; but somebody has waited in it for longer than the newcomer may."""
    simulation = _simulation()
    for i in range(4):
        assert _add(simulation, f"r{i}", 200, 400) is None
    begin_s = simulation.clock()
    simulation.step_until(lambda: simulation.clock() - begin_s > 3.5)
    assert simulation.scheduler.num_waiting == 1
    assert _add(simulation, "strict", 100, slo=STRICT) is DropReason.SLO_AT_RISK


def test_the_bound_of_a_queue_counts_those_that_cells_keep_out() -> None:
    simulation = _simulation(max_num_waiting=2)
    drops = [_add(simulation, f"r{i}") for i in range(12)]
    assert drops == [None] * 5 + [DropReason.QUEUE_FULL] * 7, "three fit, two may wait"
    simulation.step()
    assert _add(simulation, "later") is DropReason.QUEUE_FULL
    simulation.step()
    assert (simulation.scheduler.num_running, simulation.scheduler.num_waiting) == (3, 2)
    simulation.run()


def test_behind_more_urgent_ones_that_wait_for_cells_nobody_starts() -> None:
    simulation = _simulation(max_num_waiting=1)
    for i in range(4):
        _add(simulation, f"u{i}", tier=ULTRA)
    simulation.step()
    assert simulation.scheduler.num_waiting == 1
    assert [_add(simulation, f"small{i}", 10, 5) for i in range(2)] == [None, DropReason.QUEUE_FULL]
    simulation.run()


def test_what_is_shared_takes_no_cells() -> None:
    """With the prompt in the pool, computed or about to be, one more needs little more than its output."""
    simulation = _simulation(max_num_waiting=0)
    prompt = list(range(1, 601))
    assert _add(simulation, "first", prompt, 20) is None
    simulation.step()
    assert _add(simulation, "stranger", 600) is DropReason.QUEUE_FULL
    assert _add(simulation, "follower", [*prompt, 7], 20) is None
    simulation.step_until(lambda: simulation.output["first"])
    assert _add(simulation, "third", [*prompt, 8], 20, slo=STRICT) is None
    simulation.run()
    assert simulation.finished["third"].reason is FinishReason.LENGTH


def test_cells_of_the_cache_can_be_had() -> None:
    simulation = _simulation(max_num_waiting=0)
    for i in range(3):
        assert _add(simulation, f"r{i}", 300, 5) is None
        simulation.run()
    assert simulation.scheduler.kv_usage.num_free_tokens < 100
    assert _add(simulation, "next", 800, 5) is None
    simulation.run()


def test_those_who_wait_for_a_prefix_or_the_disk_count_in_tokens_too() -> None:
    simulation = _simulation(8000, max_waiting_tokens=1000)
    prompt = list(range(1, 601))
    assert _add(simulation, "first", prompt, 20) is None
    simulation.step()
    for i in range(7):
        assert _add(simulation, f"follower{i}", [*prompt, i + 700], 20) is None, "there are places"
    simulation.step()
    assert len(simulation.scheduler._state.followers) == 7
    assert simulation.scheduler._state.num_queued_tokens(DEFAULT.rank) == 7 * 601
    assert _add(simulation, "next", 10) is DropReason.QUEUE_TOKENS_FULL
    state = simulation.scheduler._state
    (live,) = (live for live in state.live.values() if live.request_id == "follower6")
    state.followers.discard(live)
    state.restorer.step_aside(live)
    assert state.num_queued_tokens(DEFAULT.rank) == 7 * 601
    simulation.run()


SLOW_CELLS = FakeCost(cell_s=0.0000015)
"""With 2,000 cells in use a token costs half as much again."""


def _with_full_pool(num_warm: int) -> Simulation:
    simulation = _simulation(4000, cost=SLOW_CELLS, num_warm=num_warm)
    for i in range(3):
        _add(simulation, f"full{i}", 600, 200)
    simulation.step_until(lambda: all(simulation.output[f"full{i}"] for i in range(3)))
    return simulation


@pytest.mark.parametrize("num_warm", [4, 30])
def test_what_an_idle_machine_could_do_in_time_is_not_refused_for_good(num_warm: int) -> None:
    objective = RequestSlo(ttft_s=0.45, is_strict=True)
    idle = _simulation(4000, cost=SLOW_CELLS, num_warm=num_warm)
    assert _add(idle, "r", 60, 5, slo=objective) is None
    idle.run()
    assert idle.first_token_s("r") - idle.requests["r"].arrival_s < 0.45
    busy = _with_full_pool(num_warm)
    assert _add(busy, "r", 60, 5, slo=objective) is DropReason.SLO_AT_RISK
    assert busy.finished["r"].retry_after_s is not None
    assert _add(busy, "never", 200, 5, slo=objective) is DropReason.SLO_UNREACHABLE
    assert busy.finished["never"].retry_after_s is None


@pytest.mark.parametrize("objective", [RequestSlo(ttft_s=0.45, is_strict=True), RequestSlo(tpot_s=0.012, is_strict=True)])
def test_what_was_learnt_while_the_machine_was_slow_refuses_nobody_for_good(objective: RequestSlo) -> None:
    """Something else takes two thirds of the processor, for so long that the cost model knows nothing else any more."""
    simulation = _simulation(4000)
    assert _add(simulation, "before", 60, 5, slo=objective) is None
    simulation.run()
    simulation.executor._cost = FakeCost(fixed_s=0.006, output_s=0.021, prefill_token_s=0.0165)
    for i in range(40):
        assert _add(simulation, f"slow{i}", 200, 20) is None
        simulation.run()
    assert _add(simulation, "r", 60, 5, slo=objective) is DropReason.SLO_AT_RISK
    retry_after_s = simulation.finished["r"].retry_after_s
    assert retry_after_s is not None
    assert 1.0 <= retry_after_s <= 120.0
    never = RequestSlo(ttft_s=0.45, tpot_s=0.008, is_strict=True)
    assert _add(simulation, "never", 60, 5, slo=never) is DropReason.SLO_UNREACHABLE, "no step was ever so short"


def test_before_a_large_chunk_was_seen_nobody_is_refused_for_good() -> None:
    """An engine that replaces another starts without a warm-up, and beside streams it sees only small chunks."""
    simulation = _simulation(4000, num_warm=0)
    simulation.scheduler.cost.observe(1, 0, 0.07)
    for chunk in [16, 32] * 5:
        simulation.scheduler.cost.observe(1, chunk, 0.05 + chunk * 0.02)
    strict = RequestSlo(ttft_s=4.0, is_strict=True)
    assert _add(simulation, "r", 600, 5, slo=strict) is DropReason.SLO_AT_RISK
    simulation.scheduler.cost.observe(0, 256, 4.0)
    assert _add(simulation, "never", 600, 5, slo=strict) is DropReason.SLO_UNREACHABLE


def _served_in(simulation: Simulation, name: str) -> ServiceTier:
    simulation.run()
    return simulation.finished[name].tier


@pytest.mark.parametrize(
    ("slo", "tier"),
    [
        (RequestSlo(), FLEX),
        (RequestSlo(ttft_s=0.4), DEFAULT),
        (RequestSlo(tpot_s=0.001), DEFAULT),
        (RequestSlo(ttft_s=0.4, is_strict=True), None),
    ],
)
def test_a_tier_is_left_only_for_one_that_meets_what_the_client_asks(slo: RequestSlo, tier: ServiceTier | None) -> None:
    """Flex would be in time by its own objective, and not by the client's: then the move would only make it later."""
    simulation = _simulation(4000, is_downgradable=True, ttft_s=0.5)
    simulation.scheduler.cost.observe(1, 64, FakeCost().step_s(1, 64))
    dropped = _add(simulation, "r", 200, 5, slo=slo)
    assert dropped is (DropReason.SLO_UNREACHABLE if tier is None else None)
    if tier is not None:
        assert _served_in(simulation, "r") is tier


def test_a_move_is_not_judged_by_a_rate_that_another_tier_was_measured_at() -> None:
    """The queue of default is slow, that of flex was fast: whoever moves there is still behind the former."""
    simulation = _simulation(4000, is_downgradable=True)
    state = simulation.scheduler._state
    for i in range(6):
        assert _add(simulation, f"r{i}", 200, 300) is None
    for second in range(30):
        state.drain.step_finished(1.0, [0, 0, second % 10 == 0, 9], [0, 0, 3, 3], float(second))
    assert state.drain.wait_s(FLEX.rank, [0, 0, 6, 0], 30.0) < 2.0 < state.drain.wait_s(DEFAULT.rank, [0, 0, 6, 0], 30.0)
    assert _add(simulation, "own", 20, 5, slo=RequestSlo(ttft_s=2.5)) is None
    assert _served_in(simulation, "own") is DEFAULT
