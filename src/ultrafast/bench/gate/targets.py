"""What a gate demands: one limit on one metric, for one tier or for all requests; and how people write it.

ttft:p99<=300ms            TTFT of 99 % of the requests is at most 300 ms
itl:p99<=50ms@ultrafast    of the requests of tier ultrafast, 99 % of all gaps per token
jitter<=20ms               standard deviation of the gaps within requests, pooled over requests
jitter:p95<=20ms           95 % of the requests have at most this deviation of their own
errors<=1%                 share of requests that failed
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

from ultrafast.core.errors import ConfigError
from ultrafast.core.tiers import parse_tier


class Metric(StrEnum):
    """What can be gated. Definitions stand with the figures of a request; all are times in seconds but `ERRORS`."""

    TTFT = "ttft"
    TTFT_SERVICE = "ttft_service"
    TPOT = "tpot"
    ITL = "itl"
    GAP = "gap"
    E2E = "e2e"
    JITTER = "jitter"
    MAX_GAP = "max_gap"
    ERRORS = "errors"


METRIC_ALIASES = {"e2el": Metric.E2E, "latency": Metric.E2E, "service_ttft": Metric.TTFT_SERVICE}

POOLED_PER_REQUEST = frozenset({Metric.ITL, Metric.GAP})
"""Metrics of which a request has many values."""

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1e-3}
_FORM = re.compile(
    r"^\s*(?P<metric>[a-z0-9_]+)\s*(?::\s*p(?P<percentile>\d+(?:\.\d+)?))?\s*<=?\s*"
    r"(?P<limit>\d+(?:\.\d+)?)\s*(?P<unit>us|ms|s|%|)\s*(?:@\s*(?P<tier>[A-Za-z]+))?\s*$",
    re.IGNORECASE,
)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One demand.

    Attributes:
        quantile: in (0, 1). None: the pooled deviation (`jitter`) or a share (`errors`).
        limit: seconds; for `errors` a share in [0, 1).
        tier: canonical name (`canonical_tier`); None: all requests.
    """

    metric: Metric
    quantile: float | None
    limit: float
    tier: str | None = None

    @property
    def is_time(self) -> bool:
        """Whether `limit` is a time."""
        return self.metric is not Metric.ERRORS

    @property
    def name(self) -> str:
        """What is measured, without the limit: `ttft p99 (ultrafast)`."""
        percentile = "" if self.quantile is None else f" p{self.quantile * 100:g}"
        return f"{self.metric}{percentile}" + (f" ({self.tier})" if self.tier else "")

    def show(self, value: float) -> str:
        """A value of this metric for people: `212 ms`, `1.5 %`."""
        return show_time(value) if self.is_time else f"{value * 100:.3g} %"

    def __str__(self) -> str:
        return f"{self.name} <= {self.show(self.limit)}"


def show_time(value_s: float) -> str:
    """Seconds as people read them, three digits: `212 ms`, `3.2 s`."""
    if value_s == float("inf"):
        return "never (failed requests)"
    return f"{value_s:.3g} s" if value_s >= 10 else f"{_three_digits(value_s * 1e3)} ms"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def parse_target(text: str) -> Target:
    """Read a target as people write it; a limit without unit is in milliseconds.

    Raises:
        ConfigError: not understood, with the forms that are.
    """
    found = _FORM.match(text)
    if not found:
        raise _refused(f"{text!r} is no target.")
    metric = parse_metric(found["metric"])
    percentile = None if found["percentile"] is None else float(found["percentile"])
    if metric is Metric.ERRORS:
        return _error_target(text, percentile, float(found["limit"]), found["unit"], found["tier"])
    if found["unit"] == "%":
        raise _refused(f"{text!r}: {metric} is a time, not a share.")
    if percentile is None and metric is not Metric.JITTER:
        raise _refused(f"{text!r} names no percentile; only jitter and errors need none.")
    limit = float(found["limit"]) * _UNITS[found["unit"].lower()]
    return make_target(metric, percentile, limit, found["tier"])


def make_target(metric: Metric, percentile: float | None, limit_s: float, tier: str | None = None) -> Target:
    """A checked target.

    Args:
        metric: any but `errors`.
        percentile: in (0, 100), or None for the pooled deviation.
        limit_s: above 0, seconds.
        tier: a service tier or one of its aliases; None: all requests.

    Raises:
        ConfigError: out of range.
    """
    if percentile is not None and not 0 < percentile < 100:
        raise _refused(f"A percentile lies between 0 and 100, not {percentile:g}.")
    if limit_s <= 0:
        raise _refused(f"The limit of {metric} must be above 0.")
    return Target(
        metric=metric, quantile=_as_quantile(percentile), limit=limit_s, tier=None if tier is None else canonical_tier(tier)
    )


def _as_quantile(percentile: float | None) -> float | None:
    return None if percentile is None else round(percentile / 100, 9)


def _error_target(text: str, percentile: float | None, limit: float, unit: str, tier: str | None) -> Target:
    if percentile is not None or unit not in ("%", "") or limit >= 100:
        raise _refused(f"{text!r}: errors are a share, such as errors<=1%.")
    return Target(metric=Metric.ERRORS, quantile=None, limit=limit / 100, tier=None if tier is None else canonical_tier(tier))


def parse_metric(name: str) -> Metric:
    """A metric by name or alias; raises ConfigError."""
    lowered = name.lower()
    if lowered in METRIC_ALIASES:
        return METRIC_ALIASES[lowered]
    try:
        return Metric(lowered)
    except ValueError:
        raise _refused(f"There is no metric {name!r}; there are {', '.join(Metric)}.") from None


def canonical_tier(tier: str) -> str:
    """Our name of a tier that has aliases (`batch` is `flex`); any other name as it is: other servers have other tiers."""
    known = parse_tier(tier.lower())
    return tier.lower() if known is None else known.value


def _refused(message: str) -> ConfigError:
    return ConfigError(
        message,
        code="invalid_target",
        hint="Write for example ttft:p99<=300ms, itl:p99<=50ms@ultrafast, jitter<=20ms, errors<=1%.",
    )
