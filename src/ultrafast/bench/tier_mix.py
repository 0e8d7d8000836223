"""Which service tier each request asks for, as shares: `ultrafast=0.8,flex=0.2`. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ultrafast.core.errors import ConfigError


def parse_tier_mix(text: str) -> dict[str, float]:
    """Shares by tier; they must sum to 1 (or 100). A single name alone is all of it.

    Any name is allowed: other servers have other tiers.

    Raises:
        ConfigError: no share, a negative one, or a wrong sum.
    """
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        try:
            shares[name.strip()] = float(value) if equals else 1.0
        except ValueError as error:
            raise _bad(text) from error
    total = sum(shares.values())
    if (
        "" in shares
        or min(shares.values()) < 0
        or not (math.isclose(total, 1, abs_tol=1e-6) or math.isclose(total, 100, abs_tol=1e-4))
    ):
        raise _bad(text)
    return {name: share / total for name, share in shares.items() if share > 0}


def assign_tiers(mix: Mapping[str, float], num_sessions: int, seed: int) -> list[str | None]:
    """A tier per session, in random order but with exactly the shares asked for, as far as whole sessions allow."""
    if not mix:
        return [None] * num_sessions
    names = sorted(mix)
    counts = {name: math.floor(mix[name] * num_sessions) for name in names}
    by_rest = sorted(names, key=lambda name: counts[name] - mix[name] * num_sessions)
    for name in by_rest[: num_sessions - sum(counts.values())]:
        counts[name] += 1
    tiers = [name for name in names for _ in range(counts[name])]
    return [tiers[number] for number in np.random.default_rng(seed).permutation(num_sessions)]


def _bad(text: str) -> ConfigError:
    return ConfigError(f"{text!r} is no tier mix.", hint="Write shares that sum to 1: ultrafast=0.8,flex=0.2.")
