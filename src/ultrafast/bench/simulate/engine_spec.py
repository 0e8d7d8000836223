"""What one simulated engine is: the limits its scheduler works within, and how long its steps take.

    step = base + output * num_outputs + token * num_prefill_tokens         (sched.cost has the same three coefficients)

A description can be saved as JSON and read again; `ultrafast simulate --fit` takes one from a running server.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ultrafast.bench.simulate.engine_settings import ENGINE_KEYS
from ultrafast.core.errors import ConfigError
from ultrafast.core.tiers import DEFAULT_POLICIES, TierPolicy
from ultrafast.engine.description import EngineDescription
from ultrafast.engine.options import DEFAULT_STEP_TARGET_S
from ultrafast.sched.limits import SchedulerLimits

DEFAULT_KV_TOKENS = 65_536
DEFAULT_STEP_TOKENS = 512
_ENGINE_FILE = "`ultrafast simulate --fit URL --save-engine FILE` writes one from a running server of ours."


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds per step, per output row and per prefill token. `noise`: sigma of a log-normal factor of mean 1 on each step."""

    base_s: float
    output_s: float
    token_s: float
    noise: float = 0.0

    def __post_init__(self) -> None:
        values = (self.base_s, self.output_s, self.token_s, self.noise)
        if not all(math.isfinite(value) and value >= 0 for value in values) or sum(values[:3]) <= 0:
            raise ConfigError(
                f"A step cost of {values[0]}, {values[1]} and {values[2]} seconds (noise {self.noise}) is none.",
                hint="No part may be negative, and not all of them 0.",
            )

    def step_s(self, num_outputs: int, num_prefill_tokens: int) -> float:
        return self.base_s + self.output_s * num_outputs + self.token_s * num_prefill_tokens


BUNDLED_COST = StepCost(base_s=0.004, output_s=0.007, token_s=0.0055)
"""About what the bundled 135M model takes on two CPU cores: for a first look, never for a promise."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine. `source` says in words where the cost comes from."""

    limits: SchedulerLimits
    cost: StepCost
    source: str


def make_limits(
    *,
    kv_tokens: int = 0,
    max_request_tokens: int = 0,
    max_step_tokens: int = 0,
    step_target_s: float = 0.0,
    max_num_running: int = 32,
    max_num_paused: int = 0,
    max_num_cached: int = 64,
    max_cached_tokens: int = 0,
    enable_prefix_cache: bool = True,
    enable_reservation: bool = True,
    can_trim: bool = True,
    can_interrupt: bool = False,
    max_side_tokens: int | None = 0,
    tiers: tuple[TierPolicy, ...] = DEFAULT_POLICIES,
) -> SchedulerLimits:
    """Limits from settings of the same names; 0 is filled in as the engine would, with fixed numbers for what it measures.

    `max_side_tokens`: as in `SchedulerLimits`; None = the longest request.

    Raises:
        ConfigError: values that no scheduler can work with.
    """
    kv_tokens = kv_tokens or DEFAULT_KV_TOKENS
    request_tokens = min(max_request_tokens or kv_tokens, kv_tokens)
    return SchedulerLimits(
        kv_capacity_tokens=kv_tokens,
        max_request_tokens=request_tokens,
        max_step_tokens=max(max_step_tokens or DEFAULT_STEP_TOKENS, max_num_running),
        step_target_s=step_target_s or DEFAULT_STEP_TARGET_S,
        max_num_running=max_num_running,
        max_num_paused=max_num_paused or max_num_running,
        max_num_cached=max_num_cached,
        max_cached_tokens=max_cached_tokens or kv_tokens // 4,
        enable_prefix_cache=enable_prefix_cache,
        enable_reservation=enable_reservation,
        can_trim=can_trim,
        can_interrupt=can_interrupt,
        max_side_tokens=request_tokens if max_side_tokens is None else max_side_tokens,
        enable_speculation=False,  # whether a text repeats itself is not in a trace
        tiers=tiers,
    )


def parse_cost(text: str) -> StepCost:
    """Read `base=2,output=7,token=5.5` (milliseconds; `noise=0.1` optional).

    Raises:
        ConfigError: another name, no number, or a negative one.
    """
    values: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        try:
            values[name] = float(number)
        except ValueError as error:
            raise _bad_cost(text) from error
    if not {"base", "output", "token"} <= values.keys() <= {"base", "output", "token", "noise"}:
        raise _bad_cost(text)
    return StepCost(values["base"] / 1e3, values["output"] / 1e3, values["token"] / 1e3, values.get("noise", 0.0))


def _bad_cost(text: str) -> ConfigError:
    return ConfigError(f"{text!r} is no cost of a step.", hint="Write base=2,output=7,token=5.5 (milliseconds).")


def read_engine_file(path: Path) -> EngineDescription:
    """Read a description.

    Raises:
        ConfigError: unreadable, or not one.
    """
    try:
        return decode_engine(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.", hint=_ENGINE_FILE) from error


def decode_engine(data: bytes, origin: str) -> EngineDescription:
    """Read a description from bytes.

    Raises:
        ConfigError: not one; or one of an engine that has not run enough steps to know what they cost.
    """
    try:
        described = msgspec.json.decode(data, type=EngineDescription)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{origin} does not describe an engine: {error}.", hint=_ENGINE_FILE) from error
    if described.base_s + described.output_s + described.token_s <= 0:
        raise ConfigError(
            f"{origin} knows no cost of a step yet.", hint="Send it some requests first: `ultrafast bench` with a few prompts."
        )
    return described


def spec_of(
    described: EngineDescription, tiers: tuple[TierPolicy, ...], origin: str, given: Mapping[str, Any] | None = None
) -> EngineSpec:
    """The engine that a description is of; `given`: parameters of `make_limits` that are to be otherwise."""
    values = {parameter: getattr(described, name) for name, parameter in ENGINE_KEYS.items()} | dict(given or {})
    limits = make_limits(
        **values,
        can_trim=described.can_trim,
        can_interrupt=described.can_interrupt,
        max_side_tokens=described.max_side_tokens,
        tiers=tiers,
    )
    cost = StepCost(described.base_s, described.output_s, described.token_s)
    return EngineSpec(limits, cost, f"fitted over {described.num_steps} steps of {described.model or origin}")
