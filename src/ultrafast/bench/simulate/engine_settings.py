"""Which settings a simulation is made of; what it cannot honour is refused or named, never silently ignored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ultrafast.config.keys import SETTING_KEYS
from ultrafast.config.load import LoadedSettings
from ultrafast.core.errors import ConfigError

ENGINE_KEYS = {
    "kv_capacity_tokens": "kv_tokens",
    "max_request_tokens": "max_request_tokens",
    "max_step_tokens": "max_step_tokens",
    "step_target_s": "step_target_s",
    "max_num_running": "max_num_running",
    "max_num_paused": "max_num_paused",
    "max_num_cached": "max_num_cached",
    "max_cached_tokens": "max_cached_tokens",
    "enable_prefix_cache": "enable_prefix_cache",
    "enable_reservation": "enable_reservation",
}
"""Settings `engine.*`, and the parameters of `engine_spec.make_limits` that they are."""
_TIER_KEYS = (
    "ttft_ms",
    "tpot_ms",
    "min_share",
    "max_num_waiting",
    "max_waiting_tokens",
    "queue_ttl_s",
    "execution_ttl_s",
    "is_downgradable",
)
_HONOURED = {f"engine.{name}" for name in (*ENGINE_KEYS, "enable_side_context")} | {
    dotted for dotted in SETTING_KEYS if dotted == "tiers.order" or (dotted.startswith("tiers.") and dotted.endswith(_TIER_KEYS))
}


def all_engine_values(loaded: LoadedSettings) -> dict[str, Any]:
    """Every setting of the engine as a parameter of `make_limits`, defaults included."""
    return {parameter: getattr(loaded.settings.engine, name) for name, parameter in ENGINE_KEYS.items()}


def given_engine_values(loaded: LoadedSettings) -> dict[str, Any]:
    """Those that a person set, which win over what a running server says; one that is to be derived says nothing."""
    values = {}
    for name, parameter in ENGINE_KEYS.items():
        value = getattr(loaded.settings.engine, name)
        is_derived = value == 0 and SETTING_KEYS[f"engine.{name}"].default == 0
        if loaded.is_given(f"engine.{name}") and not is_derived:
            values[parameter] = value
    return values


def refuse_unknown_to_simulation(assignments: Iterable[str]) -> None:
    """Raise ConfigError for the first setting, named on the command line, that would change nothing in a simulation."""
    for dotted in assignments:
        if dotted not in _HONOURED:
            raise ConfigError(
                f"--set {dotted}: a simulation knows nothing of this setting.",
                param=dotted,
                hint=f"It knows engine.{{{','.join(ENGINE_KEYS)}}}, tiers.order and tiers.TIER.{{{','.join(_TIER_KEYS)}}}.",
            )


def left_out(loaded: LoadedSettings) -> list[str]:
    """Settings of engine and tiers, given in a file or the environment, that the simulation leaves out."""
    return [
        dotted
        for dotted in SETTING_KEYS
        if dotted.startswith(("engine.", "tiers.")) and dotted not in _HONOURED and loaded.is_given(dotted)
    ]
