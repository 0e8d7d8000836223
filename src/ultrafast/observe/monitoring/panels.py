"""Panels about the machine: queue, KV, steps, tokens, HTTP; and the PromQL that they share with the others."""

from __future__ import annotations

from ultrafast.observe.monitoring import grafana
from ultrafast.observe.monitoring.grafana import Json, Query, Row

JOB = 'job=~"$job"'
SCOPE = f'{JOB},instance=~"$instance"'


def rate(metric: str, selector: str) -> str:
    """Change per second, over an interval that Grafana fits to scrape interval and zoom."""
    return f"rate({metric}{{{selector}}}[$__rate_interval])"


def quantile(percentile: int, histogram: str, selector: str, *by: str) -> str:
    """A percentile over all chosen servers: buckets are summed first, per `le` and `by`."""
    labels = ", ".join((*by, "le"))
    return f"histogram_quantile({percentile / 100:g}, sum by ({labels}) ({rate(f'{histogram}_bucket', selector)}))"


def machine_rows(max_num_running: int) -> list[Row]:
    """Everything below the latencies."""
    return [
        Row("Queue and KV", tuple(_queue(max_num_running) + _kv()), width=6, height=7),
        Row("Steps", tuple(_steps()), width=6, height=7),
        Row("Answers and process", tuple(_answers()), width=6, height=7),
    ]


def _queue(max_num_running: int) -> list[Json]:
    sequences = [
        Query(f"sum(ultrafast_requests_running{{{SCOPE}}})", "running"),
        Query(f"sum(ultrafast_requests_waiting{{{SCOPE}}})", "waiting"),
        Query(f"sum(ultrafast_requests_in_flight{{{SCOPE}}})", "calls in flight"),
    ]
    waiting = [Query(quantile(99, "ultrafast_queue_seconds", SCOPE, "tier"), "{{tier}} P99")]
    prefill = [Query(quantile(99, "ultrafast_prefill_seconds", SCOPE, "tier"), "{{tier}} P99")]
    return [
        grafana.graph(
            "Sequences",
            sequences,
            "short",
            f"At most {max_num_running} may run at once on one server.",
            steps=grafana.limit(max_num_running),
        ),
        grafana.graph("Time in the queue", waiting, "s", "From the arrival of a sequence to its first place in the engine."),
        grafana.graph("Time to prefill", prefill, "s", "From the first place in the engine to the first token."),
    ]


def _kv() -> list[Json]:
    running = f'sum(ultrafast_kv_blocks{{{SCOPE},state="running"}})'
    used = f"{running} / (sum(ultrafast_kv_capacity_blocks{{{SCOPE}}}) > 0)"
    hits = rate("ultrafast_prefix_cache_hit_tokens_total", SCOPE)
    queried = rate("ultrafast_prefix_cache_queried_tokens_total", SCOPE)
    events = [
        Query(f"sum by (tier) ({rate('ultrafast_preemptions_total', SCOPE)})", "preemptions {{tier}}"),
        Query(f"sum by (tier) ({rate('ultrafast_aborts_total', SCOPE)})", "aborts {{tier}}"),
    ]
    return [
        grafana.stat(
            "KV held by running sequences",
            [Query(used, "running")],
            "percentunit",
            "Cached blocks are given up when needed and do not count. Yellow from 80 %, red from 95 %.",
            grafana.rising(0.8, 0.95),
            top=1,
        ),
        grafana.graph(
            "KV blocks",
            [Query(f"sum by (state) (ultrafast_kv_blocks{{{SCOPE}}})", "{{state}}")],
            "short",
            "Blocks of 32 tokens; the states sum to the capacity.",
            is_stacked=True,
        ),
        grafana.graph(
            "Prompt tokens found in the prefix cache",
            [Query(f"sum({hits}) / (sum({queried}) > 0)", "hit share")],
            "percentunit",
            "Tokens that were not computed again, of all prompt tokens.",
        ),
        grafana.graph(
            "Sequences that lost their place", events, "ops", "Preemptions: for want of KV. Aborts: their client left."
        ),
    ]


def _steps() -> list[Json]:
    durations = [
        Query(quantile(percentile, "ultrafast_step_seconds", SCOPE, "kind"), f"{{{{kind}}}} P{percentile}")
        for percentile in (50, 99)
    ]
    tokens = (
        f"sum by (kind) ({rate('ultrafast_step_tokens_sum', SCOPE)})\n"
        f"  / (sum by (kind) ({rate('ultrafast_step_tokens_count', SCOPE)}) > 0)"
    )
    busy = f"sum by (instance) ({rate('ultrafast_step_seconds_sum', SCOPE)})"
    age = f"ultrafast_last_step_age_seconds{{{SCOPE}}} and ultrafast_requests_in_flight{{{SCOPE}}} > 0"
    return [
        grafana.graph("Step duration", durations, "s", "A decoding sequence gets one token per step."),
        grafana.graph(
            "Steps per second",
            [Query(f"sum by (kind) ({rate('ultrafast_step_seconds_count', SCOPE)})", "{{kind}}")],
            "ops",
            "prefill: prompts only; decode: output only; mixed: both.",
            is_stacked=True,
        ),
        grafana.graph("Tokens per step, mean", [Query(tokens, "{{kind}}")], "short", "How well steps are filled."),
        grafana.graph(
            "Time to decide a step",
            [Query(quantile(99, "ultrafast_schedule_seconds", SCOPE), "P99")],
            "s",
            "Part of each step that is not the model.",
        ),
        grafana.graph(
            "Engine busy",
            [Query(busy, "{{instance}}")],
            "percentunit",
            "Share of time inside steps. Yellow from 80 %, red from 95 %: no room for more load.",
            steps=grafana.rising(0.8, 0.95),
        ),
        grafana.graph(
            "Age of the last step, with calls in flight",
            [Query(age, "{{instance}}")],
            "s",
            "Grows while the engine is stuck.",
        ),
        grafana.graph(
            "Tokens per second",
            [
                Query(f"sum by (tier) ({rate('ultrafast_output_tokens_total', SCOPE)})", "output {{tier}}"),
                Query(f"sum by (tier) ({rate('ultrafast_prompt_tokens_total', SCOPE)})", "prompt {{tier}}"),
                Query(f"sum({rate('ultrafast_computed_tokens_total', SCOPE)})", "computed"),
            ],
            "short",
            "computed: through a forward pass, recomputation after preemption included, cached prompt tokens not.",
        ),
        grafana.graph(
            "Jitter, P99",
            [Query(quantile(99, "ultrafast_jitter_seconds", SCOPE, "tier"), "{{tier}}")],
            "s",
            "Standard deviation of the gaps inside an answer.",
        ),
    ]


def _answers() -> list[Json]:
    restarts = f"sum by (instance) (increase(ultrafast_engine_restarts_total{{{SCOPE}}}[$__range]))"
    builds = f"max by (instance, version, engine, model) (ultrafast_build_info{{{SCOPE}}})"
    return [
        grafana.graph(
            "HTTP answers",
            [Query(f"sum by (status_class) ({rate('ultrafast_http_responses_total', SCOPE)})", "{{status_class}}")],
            "reqps",
            "All routes; aborted: the client left before the answer ended.",
            is_stacked=True,
        ),
        grafana.stat(
            "Engine restarts",
            [Query(restarts, "{{instance}}", is_instant=True)],
            "short",
            "Replacements of the engine process within the shown time.",
            grafana.rising(1, 3),
        ),
        grafana.graph(
            "CPU of the API process",
            [Query(rate("process_cpu_seconds_total", SCOPE), "{{instance}}")],
            "percentunit",
            "100 % is one core, the most that an event loop can use. Without the engine's threads.",
            steps=grafana.rising(0.7, 0.9),
        ),
        grafana.stat(
            "What runs",
            [Query(builds, "{{model}} {{version}} {{engine}}", is_instant=True)],
            "short",
            "Model, version and build of the engine; the figure is the number 1.",
            grafana.PLAIN,
        ),
    ]
