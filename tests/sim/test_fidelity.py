"""The light engine of simulations and the strict one lead to the same steps."""

from dataclasses import replace

import pytest
from tests.sim.long_run import WORLDS
from tests.sim.mixed_load import mixed_load
from tests.sim.strict_passes import StrictPasses

from ultrafast.bench.simulate.engine_spec import EngineSpec
from ultrafast.bench.simulate.fleet import Fleet
from ultrafast.bench.simulate.replica import Replica
from ultrafast.bench.simulate.routing import make_router


def steps_of(world, load, passes):
    cost = replace(world.cost, noise=0.0)
    events = []
    spec = EngineSpec(world.limits, cost, "test")
    replica = Replica(0, spec, lambda batch, now: events.append((now, batch)), passes=passes)
    steps = []

    def watch(one, now):
        if one.current_plan is not None:
            steps.append((now, one.current_plan.kv_ops, [(w.request_id, w.start, len(w.tokens)) for w in one.current_plan.work]))

    fleet = Fleet([replica], make_router("least-ttft"), lambda *_: None, watch)
    fleet.run(mixed_load(300, world.rate_per_s * load, 4, too_long=world.limits.kv_capacity_tokens + 1))
    return steps


@pytest.mark.parametrize(("name", "load", "has_side"), [("kv", 2, False), ("strict beside", 1, True)])
def test_the_same_steps_on_both(name, load, has_side):
    world = WORLDS[name]
    strict = StrictPasses(world.limits, replace(world.cost, noise=0.0))
    assert steps_of(world, load, strict) == steps_of(world, load, None)
    assert strict.num_checked > 3000
    assert (strict.executor.num_side_tokens > 0) == has_side
