"""Far more requests than can be served, on simulated time: mixed tiers, clients that come back once when they are told to."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from tests.sim.harness import Simulation, make_limits, make_request

from ultrafast.core.events import RequestFinished
from ultrafast.core.request import FinishReason, RequestSlo
from ultrafast.core.tiers import DEFAULT_POLICIES, ServiceTier

ULTRA, DEFAULT, FLEX = ServiceTier.ULTRAFAST, ServiceTier.DEFAULT, ServiceTier.FLEX
SHAPES = {ULTRA: (0.2, 32, 8), DEFAULT: (0.4, 48, 16), FLEX: (0.4, 96, 32)}
OBJECTIVES = {ULTRA: (0.8, 0.05), DEFAULT: (4.0, 0.11), FLEX: (16.0, 0.44)}
REFUSED = (FinishReason.REJECT, FinishReason.EXPIRE)


@dataclass
class Overload:
    """Counts by tier; a request is good when it was not refused and met both objectives."""

    num_good: Counter[ServiceTier] = field(default_factory=Counter)
    num_all: Counter[ServiceTier] = field(default_factory=Counter)
    num_retried: int = 0
    num_retried_well: int = 0


def _simulation() -> Simulation:
    tiers = list(DEFAULT_POLICIES)
    for tier, (ttft_s, tpot_s) in OBJECTIVES.items():
        tiers[tier.rank] = replace(tiers[tier.rank], ttft_s=ttft_s, tpot_s=tpot_s, max_num_waiting=8)
    limits = make_limits(kv_capacity_tokens=8192, step_target_s=0.05, max_num_running=4, max_num_paused=4, tiers=tuple(tiers))
    simulation = Simulation(limits)
    for name, num_tokens in (("warm", 300), ("warm2", 100)):
        simulation.add(make_request(name, num_tokens, 6))
        simulation.run()
    return simulation


def _run(factor: float, duration_s: float, seed: int, *, says_so: bool = True) -> Overload:
    """Send `factor` times what the machine can serve, and let everybody who is refused come back once, when told.

    `says_so`: who comes back says that it was refused before, as OpenAI's libraries do.
    """
    simulation, found, rng = _simulation(), Overload(), random.Random(seed)
    capacity_per_s = 1 / sum(share * (0.0055 * prompt + 0.009 * output) for share, prompt, output in SHAPES.values())
    begin_s = simulation.clock()
    arrivals: list[tuple[float, str, ServiceTier, bool]] = []
    at_s = begin_s
    while (at_s := at_s + rng.expovariate(factor * capacity_per_s)) < begin_s + duration_s:
        tier = rng.choices(list(SHAPES), [share for share, _, _ in SHAPES.values()])[0]
        arrivals.append((at_s, f"r{len(arrivals)}", tier, False))
    seen = set(simulation.finished)
    while arrivals or simulation.scheduler.has_work:
        while arrivals and (arrivals[0][0] <= simulation.clock() or not simulation.scheduler.has_work):
            at_s, name, tier, is_retry = heapq.heappop(arrivals)
            simulation.clock.advance(max(0.0, at_s - simulation.clock()))
            _, prompt, output = SHAPES[tier]
            slo = RequestSlo(is_retry=is_retry and says_so)
            simulation.add(make_request(f"{name}{'again' * is_retry}", prompt, output, tier=tier, arrival_s=at_s, slo=slo))
        simulation.step()
        for request_id in simulation.finished.keys() - seen:
            seen.add(request_id)
            event = simulation.finished[request_id]
            _book(found, event)
            if event.reason in REFUSED and not request_id.endswith("again"):
                assert event.retry_after_s is not None
                heapq.heappush(arrivals, (simulation.clock() + event.retry_after_s, request_id, event.tier, True))
    assert simulation.finished.keys() == simulation.requests.keys(), "every request has its answer"
    return found


def _book(found: Overload, event: RequestFinished) -> None:
    is_refused = event.reason in REFUSED
    if event.request_id.endswith("again"):
        found.num_retried += 1
        found.num_retried_well += not is_refused
        return
    found.num_all[event.tier] += 1
    if not is_refused and event.first_token_s is not None:
        ttft_s, tpot_s = OBJECTIVES[event.tier]
        tpot = (event.finished_s - event.first_token_s) / (event.num_output_tokens - 1)
        found.num_good[event.tier] += event.first_token_s - event.arrival_s <= ttft_s and tpot <= tpot_s


@pytest.mark.parametrize("factor", [1.5, 3.0])
def test_the_most_urgent_keep_their_objectives_in_an_overload(factor: float) -> None:
    found = [_run(factor, 25.0, seed) for seed in range(3)]
    num_good, num_all = sum(item.num_good[ULTRA] for item in found), sum(item.num_all[ULTRA] for item in found)
    assert num_all > 30
    assert num_good >= 0.97 * num_all, f"{num_good} of {num_all}"


def test_of_those_who_come_back_when_told_nine_in_ten_are_served() -> None:
    """Three times too much for as long as half a minute, and newcomers all the time."""
    found = [_run(3.0, 25.0, seed) for seed in range(3)]
    num_well, num_all = sum(item.num_retried_well for item in found), sum(item.num_retried for item in found)
    assert num_all > 100
    assert num_well >= 0.9 * num_all, f"{num_well} of {num_all}"


def test_those_who_come_back_without_saying_so_are_newcomers_and_most_still_find_room() -> None:
    """What is left to newcomers is a quarter of the queue at least; the advice spreads them, so that it is mostly enough."""
    found = {says_so: [_run(3.0, 25.0, seed, says_so=says_so) for seed in range(3)] for says_so in (True, False)}
    shares = {
        says_so: sum(item.num_retried_well for item in items) / sum(item.num_retried for item in items)
        for says_so, items in found.items()
    }
    assert 0.6 <= shares[False] < shares[True]
