"""Which conditions must be the same for two runs to compare, and which of them differ.

The server is what is being compared, so what it says about itself may differ, and is only told. The load, the lengths and the
machine must not: a difference there is measured together with the one that was meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from ultrafast.bench.compare.metrics import mean_tokens
from ultrafast.bench.records import Run
from ultrafast.core.errors import UltrafastError

MAX_LENGTH_DIFFERENCE = 0.02
MAX_ROUNDED_TOKENS = {"prompt_tokens": 1.0, "output_tokens": 0.0}
"""Prompts are made of words and meet their length to a token, which is more than 2 % of a short one."""

SCENARIO_KEYS = (
    "model",
    "endpoint",
    "arrival",
    "rate_per_s",
    "burstiness",
    "concurrency",
    "shape",
    "input_len",
    "output_len",
    "shared_prefix_tokens",
    "num_turns",
    "tier_mix",
    "is_cache_cold",
    "ignores_eos",
    "num_processes",
    "num_planned",
)
MACHINE_KEYS = ("cpu", "cores", "gpus", "platform", "is_server_local")
_TIMED_FACTS = ("server.load_s", "server.warmup_s")
"""What servers tell of their start: never the same twice."""
MEASURED_KEYS = ("prompt_tokens", "output_tokens")
ALL_KEYS = (*SCENARIO_KEYS, *MACHINE_KEYS, *MEASURED_KEYS)


class ConditionsDifferError(UltrafastError):
    """Two sides were not measured under the same conditions."""

    code = "conditions_differ"


class Mismatch(msgspec.Struct, frozen=True):
    """One condition that differs. `a` and `b` as text."""

    key: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"{self.key} (A {self.a}, B {self.b})"


def check_conditions(a: Sequence[Run], b: Sequence[Run], allowed: Iterable[str] = ()) -> tuple[Mismatch, ...]:
    """Make sure that the sides compare.

    Args:
        a: runs of one side; within a side they must be alike, too.
        b: runs of the other.
        allowed: keys that may differ between the sides.

    Returns:
        The differences that were allowed, for the report.

    Raises:
        ConditionsDifferError: names every difference that was not.
    """
    for name, runs in (("A", a), ("B", b)):
        within = [mismatch for run in runs[1:] for mismatch in mismatches(runs[:1], [run])]
        if within:
            message = f"The runs of side {name} differ among themselves: {within[0].key} ({within[0].a}, then {within[0].b})."
            raise ConditionsDifferError(message, hint="Put runs of one and the same configuration on each side.")
    found, permitted = mismatches(a, b), set(allowed)
    refused = [mismatch for mismatch in found if mismatch.key not in permitted]
    if refused:
        message = f"A and B were measured under different conditions: {'; '.join(map(str, refused))}."
        hint = "Measure again alike, or accept it with " + " ".join(f"--allow-different {mismatch.key}" for mismatch in refused)
        raise ConditionsDifferError(message, hint=hint + ".")
    return tuple(found)


def mismatches(a: Sequence[Run], b: Sequence[Run]) -> list[Mismatch]:
    """Every condition in which the sides differ."""
    found = [_differ(key, getattr(a[0].record.scenario, key), getattr(b[0].record.scenario, key)) for key in SCENARIO_KEYS]
    machines = [run.record.environment for run in (a[0], b[0])]
    found += [_differ(key, *(machine.get(f"client.{key}", "") for machine in machines)) for key in MACHINE_KEYS]
    found += [_differ_measured(key, a, b, index) for index, key in enumerate(MEASURED_KEYS)]
    return [mismatch for mismatch in found if mismatch is not None]


def server_differences(a: Run, b: Run) -> list[Mismatch]:
    """What the servers say about themselves that differs, and their addresses. Told, not judged."""
    first, second = _server_facts(a), _server_facts(b)
    found = [_differ("url", a.record.scenario.url, b.record.scenario.url)]
    found += [_differ(key, first.get(key, "-"), second.get(key, "-")) for key in sorted(first | second)]
    return [mismatch for mismatch in found if mismatch is not None]


def _server_facts(run: Run) -> dict[str, str]:
    facts = run.record.environment.items()
    return {name: value for name, value in facts if name.startswith("server.") and name not in _TIMED_FACTS}


def _differ(key: str, a: object, b: object) -> Mismatch | None:
    return None if a == b else Mismatch(key, _text(a), _text(b))


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {share:g}" for name, share in sorted(value.items())) or "none"
    return "none" if value in (None, "") else str(value)


def _differ_measured(key: str, a: Sequence[Run], b: Sequence[Run], index: int) -> Mismatch | None:
    mean: Callable[[Sequence[Run]], float | None] = lambda runs: mean_tokens(_pool(runs))[index]  # noqa: E731
    first, second = mean(a), mean(b)
    if first is None or second is None or abs(second - first) <= max(MAX_LENGTH_DIFFERENCE * first, MAX_ROUNDED_TOKENS[key]):
        return None
    return Mismatch(key, f"{first:.1f}", f"{second:.1f}")


def _pool(runs: Sequence[Run]) -> Run:
    return Run(runs[0].record, [request for run in runs for request in run.requests])
