"""A run as one JSON object: our own layout, and that of `vllm bench serve` for tools that read it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from ultrafast.bench.figures import figures_of
from ultrafast.bench.metrics import Summary, samples, summarise
from ultrafast.bench.records import RequestRecord, Run
from ultrafast.bench.stats.percentiles import nearest_rank
from ultrafast.bench.wording import GLOSSARY, NAMES


def to_json(run: Run, summary: Summary) -> dict[str, Any]:
    """Conditions, environment, flags and figures, seconds throughout. Infinity becomes null (see `is_adj_infinite`)."""
    return {
        "run": msgspec.to_builtins(run.record),
        "is_valid": run.record.is_valid,
        "groups": msgspec.to_builtins(summary.groups),
        "definitions": {name: GLOSSARY[title] for name, title in NAMES.items()},
    }


def to_vllm(run: Run, quantiles: Sequence[float]) -> dict[str, Any]:
    """The layout of `vllm bench serve --save-result --save-detailed`: milliseconds, and only successful requests.

    TTFT here is from sending, as that tool measures it, but to the first *generated* chunk. Fields that would be guesses are
    left out or null. Source of the layout: vLLM 0.11 to 0.32, `vllm/benchmarks/serve.py`.
    """
    record, scenario = run.record, run.record.scenario
    ok = [request for request in run.requests if request.is_ok]
    overall = summarise(run).overall
    prompt_lens = [request.usage.num_prompt_tokens or 0 for request in ok]
    output_lens = [request.usage.num_output_tokens or 0 for request in ok]
    duration_s = _duration_s(run.requests)
    fields: dict[str, Any] = {
        "date": record.started_at,
        "endpoint_type": "openai-chat" if "chat" in scenario.endpoint else "openai",
        "backend": "ultrafast-bench",
        "label": scenario.name,
        "model_id": scenario.model,
        "tokenizer_id": None,
        "num_prompts": scenario.num_planned,
        "request_rate": scenario.rate_per_s if scenario.rate_per_s is not None else "inf",
        "burstiness": scenario.burstiness,
        "max_concurrency": scenario.concurrency,
        "duration": duration_s,
        "completed": len(ok),
        "failed": overall.num_failed + overall.num_cancelled,
        "total_input_tokens": sum(prompt_lens),
        "total_output_tokens": sum(output_lens),
        "request_throughput": len(ok) / duration_s,
        "request_goodput": overall.goodput.per_s if overall.goodput else None,
        "output_throughput": sum(output_lens) / duration_s,
        "total_token_throughput": (sum(prompt_lens) + sum(output_lens)) / duration_s,
        "max_concurrent_requests": record.peak_in_flight,
        "input_lens": prompt_lens,
        "output_lens": output_lens,
        "ttfts": [figures_of(request).ttft_service_s for request in ok],
        "itls": [list(figures_of(request).gaps_s) for request in ok],
        "start_times": [(request.sent_ns or 0) / 1e9 for request in ok],
        "errors": [request.failure.message if request.failure else "" for request in run.requests],
    }
    for name, metric in (("ttft", "ttft_service"), ("tpot", "tpot"), ("itl", "gap"), ("e2el", "e2e")):
        fields |= _statistics(name, samples(run.requests, metric), quantiles)
    return fields | scenario.metadata


def _duration_s(requests: Sequence[RequestRecord]) -> float:
    ends = [request.end_ns for request in requests if request.end_ns is not None]
    starts = [request.sent_ns for request in requests if request.sent_ns is not None]
    return max(1e-9, (max(ends) - min(starts)) / 1e9) if ends and starts else 1e-9


def _statistics(name: str, values_s: list[float], quantiles: Sequence[float]) -> dict[str, float | None]:
    if not values_s:
        return {f"{kind}_{name}_ms": None for kind in ("mean", "median", "std")}
    fields: dict[str, float | None] = {
        f"mean_{name}_ms": statistics.fmean(values_s) * 1e3,
        f"median_{name}_ms": statistics.median(values_s) * 1e3,
        f"std_{name}_ms": statistics.pstdev(values_s) * 1e3,
    }
    for quantile in quantiles:
        value = nearest_rank(values_s, quantile)
        fields[f"p{quantile * 100:g}_{name}_ms"] = None if value is None else value * 1e3
    return fields
