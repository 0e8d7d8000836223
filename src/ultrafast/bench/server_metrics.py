"""What the server counted while it was measured, from its /metrics before and after: what no client can see.

A run in which sequences were preempted is not repeatable, however fast it was: who lost its place is chance. Servers without
such a page, or with one that is locked, give nothing, and nothing is assumed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ultrafast.bench.client import BenchClient
from ultrafast.bench.target import fetch

NAMES = {
    "preemptions": ("ultrafast_preemptions_total", "vllm:num_preemptions_total"),
    "restarts": ("ultrafast_engine_restarts_total",),
    "cache_hits": ("ultrafast_prefix_cache_hit_tokens_total", "vllm:prefix_cache_hits_total"),
    "cache_queries": ("ultrafast_prefix_cache_queried_tokens_total", "vllm:prefix_cache_queries_total"),
    "queue_sum": ("ultrafast_queue_seconds_sum", "vllm:request_queue_time_seconds_sum"),
    "queue_count": ("ultrafast_queue_seconds_count", "vllm:request_queue_time_seconds_count"),
}
"""Ours -> what servers call it (vLLM 0.11 to 0.32). Summed over all labels."""

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{.*\})?[ \t]+(\S+)", re.MULTILINE)


async def read_counters(client: BenchClient) -> dict[str, float]:
    """The counters of `NAMES` now; empty where the server shows none."""
    try:
        status, body, _ = await fetch(client.pool, "/metrics", client.headers)
    except (OSError, TimeoutError):
        return {}
    return parse_counters(body.decode("utf-8", "replace")) if status == 200 else {}


def parse_counters(text: str) -> dict[str, float]:
    """Read Prometheus' text format."""
    found: dict[str, float] = {}
    wanted = {name: ours for ours, names in NAMES.items() for name in names}
    for name, value in _SAMPLE.findall(text):
        if name in wanted:
            found[wanted[name]] = found.get(wanted[name], 0.0) + float(value)
    return found


def counted_between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What happened in between: `preemptions`, `restarts`, `cache_hit_share`, `mean_queue_s`; what is not known is left out.

    Counters that went back belong to a server that was started anew: nothing is known then.
    """
    grown = {name: after[name] - before[name] for name in after if name in before}
    if any(value < 0 for value in grown.values()):
        return {}
    told: dict[str, float] = {name: grown[name] for name in ("preemptions", "restarts") if name in grown}
    for name, part, whole in (("cache_hit_share", "cache_hits", "cache_queries"), ("mean_queue_s", "queue_sum", "queue_count")):
        if part in grown and grown.get(whole):
            told[name] = grown[part] / grown[whole]
    return told
