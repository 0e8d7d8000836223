"""A small share of `make sim`, and that its checks find what is broken."""

from dataclasses import replace

import pytest
from tests.sim.long_run import WORLDS, run_world

from ultrafast.kv.tree import PrefixTree
from ultrafast.sched.places import Places
from ultrafast.sched.waiting import WaitingQueue


@pytest.mark.parametrize("name", WORLDS)
def test_all_invariants_hold(name):
    world = WORLDS[name]
    num_requests = 200 if world.is_strict else 1200
    tally = run_world(world, num_requests, seed=1, deep_every=100)
    assert sum(tier.num_answered for tier in tally.tiers.values()) > num_requests * 0.6
    assert sum(tier.num_cancelled for tier in tally.tiers.values()) > 0


def run_a_bit():
    run_world(WORLDS["kv"], 400, seed=2, deep_every=20)


def test_a_place_too_many_is_found(monkeypatch):
    monkeypatch.setattr(Places, "_num_free", 1)
    with pytest.raises(AssertionError, match="too many run"):
        run_world(WORLDS["few places"], 400, seed=2, deep_every=20)


def test_cells_that_are_not_given_back_are_found(monkeypatch):
    remove = PrefixTree._remove

    def leak(self, segment):
        remove(self, segment)
        self.num_used += 1

    monkeypatch.setattr(PrefixTree, "_remove", leak)
    with pytest.raises(AssertionError, match="cells that nobody counts"):
        run_a_bit()


@pytest.mark.parametrize("factor", [1, -1])
def test_a_later_deadline_that_starts_first_is_found(monkeypatch, factor):
    """First in, first out is not in the order of deadlines either, where requests bring their own."""
    monkeypatch.setattr("ultrafast.sched.waiting.order_key", lambda live: (True, factor * live.arrival_s, live.order))
    world = WORLDS["few places"]
    with pytest.raises(AssertionError, match="a later deadline started"):
        run_world(replace(world, rate_per_s=3 * world.rate_per_s), 400, seed=2, deep_every=20)


def test_a_lost_request_is_found(monkeypatch):
    push, seen = WaitingQueue.push, []

    def forget_one(self, live):
        seen.append(live)
        if len(seen) != 20:
            push(self, live)

    monkeypatch.setattr(WaitingQueue, "push", forget_one)
    with pytest.raises(AssertionError, match="a request was lost"):
        run_a_bit()
