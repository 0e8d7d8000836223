"""Variants of one setup, each simulated with the same traffic."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from ultrafast.bench.simulate.engine_spec import EngineSpec
from ultrafast.bench.simulate.fleet import Fleet, Watch
from ultrafast.bench.simulate.load import SimRequest
from ultrafast.bench.simulate.outcome import Outcome, tier_outcome
from ultrafast.bench.simulate.replica import Replica
from ultrafast.bench.simulate.routing import make_router
from ultrafast.bench.simulate.tally import Tally
from ultrafast.core.errors import ConfigError
from ultrafast.core.tiers import ServiceTier

MIN_WINDOW_S = 1e-9
"""A single request at time 0 makes no window; rates over it would be infinite."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated. `has_tiers` False: the scheduler sees one tier, and attainment is still that of the tier asked for."""

    engine: EngineSpec
    num_replicas: int = 1
    routing: str = "least-ttft"
    has_tiers: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_replicas < 1:
            raise ConfigError(f"{self.num_replicas} replicas cannot serve.", hint="Give at least 1.")


@dataclass(frozen=True, slots=True)
class Variants:
    """Values to try; all combinations are simulated. An empty list leaves the setup's own value.

    Attributes:
        step_target_s: `engine.step_target_s`, the time budget of a step.
        with_no_tiers: each combination also without tiers.
    """

    num_replicas: tuple[int, ...] = ()
    kv_tokens: tuple[int, ...] = ()
    step_target_s: tuple[float, ...] = ()
    with_no_tiers: bool = False

    def of(self, base: Setup) -> Iterator[tuple[str, Setup]]:
        """Name and setup of each, in the order in which the values were given.

        Raises:
            ConfigError: a value that no scheduler can work with.
        """
        axes = (
            self.num_replicas or (base.num_replicas,),
            self.kv_tokens or (base.engine.limits.kv_capacity_tokens,),
            self.step_target_s or (base.engine.limits.step_target_s,),
            (True, False) if self.with_no_tiers else (base.has_tiers,),
        )
        for num_replicas, kv_tokens, target_s, has_tiers in itertools.product(*axes):
            parts = [f"{num_replicas} x"] if self.num_replicas else []
            parts += [f"kv {kv_tokens}"] if self.kv_tokens else []
            parts += [f"step {target_s * 1000:g} ms"] if self.step_target_s else []
            parts += ["tiers" if has_tiers else "no tiers"] if self.with_no_tiers else []
            engine = _with_limits(base.engine, kv_tokens, target_s)
            yield ", ".join(parts) or "as given", replace(base, engine=engine, num_replicas=num_replicas, has_tiers=has_tiers)


def _with_limits(engine: EngineSpec, kv_tokens: int, step_target_s: float) -> EngineSpec:
    limits = engine.limits
    is_pool_the_bound = limits.max_request_tokens == limits.kv_capacity_tokens  # else it is the model's context
    cached = limits.max_cached_tokens
    changed = replace(
        limits,
        kv_capacity_tokens=kv_tokens,
        max_request_tokens=kv_tokens if is_pool_the_bound else min(limits.max_request_tokens, kv_tokens),
        max_cached_tokens=None if cached is None else round(cached * kv_tokens / limits.kv_capacity_tokens),
        step_target_s=step_target_s,
    )
    return replace(engine, limits=changed)


def simulate(name: str, setup: Setup, requests: Iterable[SimRequest], watch: Watch | None = None) -> Outcome:
    """Run one setup to the end of its last request."""
    limits = setup.engine.limits
    serve_as = None if setup.has_tiers else ServiceTier.DEFAULT
    tally = Tally(limits, serve_as)
    replicas = [
        Replica(number, setup.engine, tally.add, seed=setup.seed, serve_as=serve_as) for number in range(setup.num_replicas)
    ]
    fleet = Fleet(replicas, make_router(setup.routing), lambda request, _: tally.routed(request), watch)
    fleet.run(requests)
    assert not tally.num_open, f"{tally.num_open} requests have no end"
    window_s = max(fleet.last_due_s, MIN_WINDOW_S)
    tiers = [tier for tier in ServiceTier if tier in tally.tiers]
    return Outcome(
        name=name,
        num_replicas=setup.num_replicas,
        routing=setup.routing,
        kv_tokens=limits.kv_capacity_tokens,
        step_target_s=limits.step_target_s,
        has_tiers=setup.has_tiers,
        window_s=window_s,
        drain_s=fleet.now - fleet.last_due_s,
        utilisation=[busy_s / window_s for busy_s in fleet.busy_in_window_s],
        num_steps=tally.num_steps,
        tokens_per_step=tally.num_step_tokens / max(1, tally.num_steps),
        output_tokens_per_s=sum(tally.tiers[tier].num_output_tokens for tier in tiers) / max(fleet.now, MIN_WINDOW_S),
        max_kv_share=tally.max_kv_tokens / limits.kv_capacity_tokens,
        max_num_waiting=tally.max_num_waiting,
        tiers=[tier_outcome(tally.tiers[tier], tier, limits.tiers[tier.rank], window_s) for tier in tiers],
    )


def simulate_all(
    base: Setup, variants: Variants, make_requests: Callable[[], Iterable[SimRequest]], watch: Watch | None = None
) -> Iterator[Outcome]:
    """Each variant in turn. `make_requests` gives the same requests each time."""
    for name, setup in variants.of(base):
        yield simulate(name, setup, make_requests(), watch)
