"""Targets from a TOML file, in the words of the server's own settings; the server's settings file is a valid one.

    [tiers.ultrafast]
    ttft_ms = 200        # P99, unless `percentile` says otherwise
    tpot_ms = 50
    jitter_ms = 20       # pooled deviation of the gaps within requests: no percentile
    percentile = 99

Tables other than `tiers`, and settings of a tier that are no objectives, belong to the server and are passed over, as is an
optional objective of 0, which is none; an unknown key inside a tier is refused.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from ultrafast.bench.gate.targets import Metric, Target, make_target
from ultrafast.config.tier_settings import TierTargets
from ultrafast.core.errors import ConfigError
from ultrafast.core.tiers import TIER_ALIASES, parse_tier

_KEYS = {f"{metric}_ms": metric for metric in Metric if metric is not Metric.ERRORS}
_OPTIONAL = {"e2e_ms", "jitter_ms"}
_SERVER_KEYS = {"order", "currency"}
DEFAULT_PERCENTILE = 99.0


def read_slo_file(path: Path) -> list[Target]:
    """Every target in the file, tiers in the order in which they stand.

    Raises:
        ConfigError: unreadable, no TOML, an unknown key or tier, a value of the wrong kind, or no target at all.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(
            f"Cannot read the SLO file {path}: {error.strerror}.", hint="Check the path given with --slo."
        ) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.", hint=_EXAMPLE) from error
    tiers = document.get("tiers", {})
    if isinstance(tiers, dict):
        tiers = {name: table for name, table in tiers.items() if name not in _SERVER_KEYS}
    if not isinstance(tiers, dict) or not all(isinstance(table, dict) for table in tiers.values()):
        raise ConfigError(f"{path}: `tiers` must hold one table per tier.", hint=_EXAMPLE)
    targets = [target for tier, table in tiers.items() for target in _read_tier(path, tier, table)]
    if not targets:
        raise ConfigError(f"{path} holds no targets.", hint=_EXAMPLE)
    return targets


_EXAMPLE = "Write for example [tiers.ultrafast] and under it ttft_ms = 200."


def _read_tier(path: Path, tier: str, table: dict[str, Any]) -> list[Target]:
    canonical = parse_tier(tier)
    if canonical is None:
        raise ConfigError(f"{path}: there is no service tier {tier!r}.", hint=f"Known are {', '.join(TIER_ALIASES)}.")
    percentile = _number(path, tier, "percentile", table.get("percentile", DEFAULT_PERCENTILE))
    targets = []
    for key, value in table.items():
        if key == "percentile" or (key in _OPTIONAL and value == 0) or (key not in _KEYS and key in TierTargets.model_fields):
            continue
        if key not in _KEYS:
            known = ", ".join([*_KEYS, "percentile"])
            raise ConfigError(f"{path}: tiers.{tier}.{key} is not known.", hint=f"Known are {known}.")
        metric = _KEYS[key]
        limit_s = _number(path, tier, key, value) / 1e3
        targets.append(make_target(metric, None if metric is Metric.JITTER else percentile, limit_s, canonical.value))
    return targets


def _number(path: Path, tier: str, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{path}: tiers.{tier}.{key} must be a number, not {value!r}.", hint=_EXAMPLE)
    return float(value)
