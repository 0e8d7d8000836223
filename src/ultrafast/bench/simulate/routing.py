"""Which replica an arrival goes to. Policies: pure choices over what a router in front of engines can know.

round-robin   one after the other, whatever they do
least-ttft    the one where the first token is predicted to come first:
              rest of the step under way + prompts ahead that are as urgent or more + its own tokens that this replica does not
              have already, at the cost per token, with a place's wait where none is free
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

from ultrafast.bench.simulate.load import SimRequest
from ultrafast.bench.simulate.replica import Replica
from ultrafast.core.errors import ConfigError


class Router(Protocol):
    """The policy's one method."""

    def choose(self, request: SimRequest, replicas: Sequence[Replica], now: float) -> Replica: ...


class RoundRobin:
    """Equal numbers for everybody."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def choose(self, request: SimRequest, replicas: Sequence[Replica], now: float) -> Replica:  # noqa: ARG002 - the policy's face
        return replicas[next(self._numbers) % len(replicas)]


class LeastTtft:
    """Where it will be answered first; among equals, the one that got a request least recently."""

    def __init__(self) -> None:
        self._turns: dict[int, int] = {}
        self._numbers = itertools.count(1)

    def choose(self, request: SimRequest, replicas: Sequence[Replica], now: float) -> Replica:
        best = min(replicas, key=lambda one: (predict_ttft_s(request, one, now), self._turns.get(one.number, 0)))
        self._turns[best.number] = next(self._numbers)
        return best


def predict_ttft_s(request: SimRequest, replica: Replica, now: float) -> float:
    """Seconds until the first token if it went there. Rough where places are short: the wait is that of a mean decode."""
    cost, scheduler = replica.spec.cost, replica.scheduler
    num_known = 0
    for block in request.blocks:
        if block not in replica.known_blocks:
            break
        num_known += request.block_tokens
    num_own = max(1, request.num_prompt_tokens - num_known)
    num_ahead = sum(replica.num_ahead_tokens[: replica.spec.limits.rank_of(request.tier) + 1])
    rest_s = 0.0 if replica.is_listening else max(0.0, replica.step_end_s - now)
    crowd = scheduler.num_running + scheduler.num_waiting
    step_s = cost.step_s(min(crowd, replica.spec.limits.max_num_running), 0)
    num_without_place = max(0, crowd + 1 - replica.spec.limits.max_num_running)
    return rest_s + cost.base_s + cost.token_s * (num_ahead + num_own) + num_without_place * step_s


ROUTERS: dict[str, type[RoundRobin] | type[LeastTtft]] = {"least-ttft": LeastTtft, "round-robin": RoundRobin}


def make_router(name: str) -> Router:
    """Make the policy of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in ROUTERS:
        raise ConfigError(f"There is no routing policy {name!r}.", hint=f"One of: {', '.join(ROUTERS)}.")
    return ROUTERS[name]()
