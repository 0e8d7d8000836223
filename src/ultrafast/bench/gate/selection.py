"""Which targets apply to a load. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ultrafast.bench.gate.samples import tier_of
from ultrafast.bench.gate.targets import Target, canonical_tier
from ultrafast.bench.records import Run
from ultrafast.core.errors import ConfigError

_HOW = "Give for example --target-p99 300, --max-jitter 20, --target 'itl:p99<=50ms@ultrafast' or --slo FILE."


def tiers_of_mix(tier_mix: Mapping[str, float]) -> set[str]:
    """The tiers that a load will ask for."""
    return {canonical_tier(tier) for tier in tier_mix} or {"default"}


def tiers_of_run(run: Run) -> set[str]:
    """The tiers that a run asked for."""
    return {tier_of(request) for request in run.requests}


def select(explicit: Sequence[Target], from_file: Sequence[Target], tiers: set[str]) -> tuple[list[Target], list[Target]]:
    """The targets to judge, and those of the file that the load does not touch.

    A file may describe every tier of a server, while a load has only some of them. A target that the user wrote out must be
    measured.

    Raises:
        ConfigError: a written target of a tier that is not in the load, two targets for the same figure, or none at all.
    """
    for target in explicit:
        if target.tier is not None and target.tier not in tiers:
            message = f"The target {target} needs requests of tier {target.tier}; the load has {', '.join(sorted(tiers))}."
            raise ConfigError(
                message, code="tier_not_measured", hint=f"Add it to the load, for example --tier-mix {target.tier}."
            )
    chosen = [*explicit, *(target for target in from_file if target.tier is None or target.tier in tiers)]
    skipped = [target for target in from_file if target not in chosen]
    if not chosen:
        what = "no target for the tiers of the load" if skipped else "no target"
        raise ConfigError(f"There is {what}: {', '.join(sorted(tiers))}." if skipped else "There is no target.", hint=_HOW)
    names = [target.name for target in chosen]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"There are two targets for {twice}.", hint="Give one.")
    return chosen, skipped
