"""Names, units and number formats that all reports share. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

NAMES = {
    "ttft": "TTFT",
    "ttft_service": "TTFT from sending",
    "ttfot": "TTFT, visible output",
    "ttfb": "Response head",
    "dispatch_lag": "Dispatch lag",
    "tpot": "TPOT",
    "itl": "ITL (per token)",
    "gap": "Gap between chunks",
    "jitter": "Jitter per request",
    "max_gap": "Longest gap",
    "e2e": "E2E",
    "close_lag": "Close lag",
}
"""Metric -> what a report calls it."""

GLOSSARY = {
    "TTFT": "planned arrival to first generated chunk: what a user waits, queueing in the client included",
    "TTFT from sending": "first byte written to first generated chunk: what other tools call TTFT",
    "TTFT, visible output": "planned arrival to the first chunk that is not reasoning",
    "Response head": "first byte written to response head complete",
    "Dispatch lag": "planned arrival to first byte written: the client's own delay",
    "TPOT": "per request: (last - first chunk) / tokens after the first",
    "ITL (per token)": "gap between chunks / tokens in the chunk, weighted by tokens",
    "Gap between chunks": "time between consecutive generated chunks, as measured",
    "Jitter per request": "standard deviation of a request's gaps (3 gaps or more)",
    "Longest gap": "longest pause inside a request",
    "E2E": "planned arrival to last generated chunk",
    "Close lag": "last generated chunk to end of the answer",
    "adj": "the percentile with failed requests counted as infinitely slow",
    "95 % CI": "order-statistic confidence interval of adj; a dash means too few samples for one",
}


def milliseconds(seconds: float | None) -> str:
    """Three significant digits at least, without unit: 0.52, 12.3, 204, 12,345; a dash for None, `inf` for infinity."""
    if seconds is None:
        return "-"
    if math.isinf(seconds):
        return "inf"
    value = seconds * 1000
    if abs(value) < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if abs(value) < 99.95 else f"{value:,.0f}"


def not_applicable(numbers: Mapping[str, int]) -> str:
    """For how many requests an SLO had no figure, and so was not held against them; empty for none."""
    told = ", ".join(f"{NAMES[name]} for {number}" for name, number in numbers.items() if number)
    return f"not defined: {told}" if told else ""


def counted(server: Mapping[str, float]) -> str:
    """What a server counted during a run, in words; empty for nothing."""
    forms: dict[str, tuple[str, Callable[[float], str]]] = {
        "preemptions": ("preemptions", lambda value: f"{value:g}"),
        "restarts": ("restarts", lambda value: f"{value:g}"),
        "cache_hit_share": ("prefix cache hits", percent),
        "mean_queue_s": ("mean queue", lambda value: f"{milliseconds(value)} ms"),
    }
    return ", ".join(f"{title} {form(server[name])}" for name, (title, form) in forms.items() if name in server)


def rate(per_s: float | None) -> str:
    """A rate without unit; a dash for None."""
    if per_s is None:
        return "-"
    return f"{per_s:.2f}" if per_s < 100 else f"{per_s:,.0f}"


def percent(share: float | None) -> str:
    """A share as percent; a dash for None."""
    return "-" if share is None else f"{share * 100:.1f} %"


def quantile_name(quantile: float) -> str:
    """P50, P99, P99.9."""
    return f"P{quantile * 100:g}"


def duration(seconds: float) -> str:
    """12 s, 3 min 20 s, 1 h 5 min."""
    whole = round(seconds)
    if whole < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
