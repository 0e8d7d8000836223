"""A run as tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ultrafast.bench.metrics import Group as Figures
from ultrafast.bench.metrics import MetricSummary, Percentile, Summary
from ultrafast.bench.records import FlagLevel, Run
from ultrafast.bench.validity import touched
from ultrafast.bench.wording import NAMES, counted, duration, milliseconds, not_applicable, percent, quantile_name, rate

_STYLES = {FlagLevel.INVALID: "bold red", FlagLevel.UNRELIABLE: "yellow", FlagLevel.NOTE: "dim"}


def print_run(console: Console, run: Run, summary: Summary, metrics: Sequence[str]) -> None:
    """Figures of all requests, then per tier, then what limits them."""
    blocks = [_head(run, summary.overall), _figures(run, summary.overall, metrics), _totals(summary.overall, run)]
    if len(summary.groups) > 1:
        blocks.append(_tiers(summary.groups[1:]))
    if run.record.flags:
        blocks.append(_flags(run))
    for block in blocks:
        console.print(block)
        console.print()


def print_sweep(console: Console, runs: Sequence[tuple[Run, Summary]]) -> None:
    """One line per load."""
    table = _table("Latency against load (times in ms)")
    for title in (
        "load",
        "ok",
        "failed",
        "TTFT P50",
        "TTFT P99 adj",
        "TPOT P50",
        "TPOT P99",
        "jitter",
        "tok/s",
        "goodput/s",
        "valid",
    ):
        table.add_column(title, justify="right")
    for run, summary in runs:
        overall = summary.overall
        ttft, tpot = overall.metrics["ttft"], overall.metrics["tpot"]
        table.add_row(
            load_name(run),
            str(overall.num_ok),
            str(overall.num_failed + overall.num_cancelled),
            milliseconds(_at(ttft, 0.5).adj),
            milliseconds(_at(ttft, 0.99).adj),
            milliseconds(_at(tpot, 0.5).value),
            milliseconds(_at(tpot, 0.99).value),
            milliseconds(overall.jitter_s),
            rate(overall.throughput.output_tokens_per_s),
            rate(overall.goodput.per_s) if overall.goodput else "-",
            "yes" if run.record.is_valid else "NO",
        )
    console.print(table)


def load_name(run: Run) -> str:
    """The load of a run in words."""
    scenario = run.record.scenario
    if scenario.rate_per_s is not None:
        return f"{scenario.rate_per_s:g}/s"
    return f"{scenario.concurrency or 1} at once" if scenario.arrival == "closed" else scenario.arrival


def _at(metric: MetricSummary, quantile: float) -> Percentile:
    return min(metric.percentiles, key=lambda percentile: abs(percentile.quantile - quantile))


def _head(run: Run, overall: Figures) -> RenderableType:
    scenario = run.record.scenario
    window = duration(run.record.window.duration_s)
    lines = [
        f"{scenario.model} at {scenario.url}{scenario.endpoint}",
        f"{scenario.name}, {scenario.arrival}, load {load_name(run)}, seed {scenario.seed}, window {window}",
        f"{overall.num_planned} planned = {overall.num_ok} ok + {overall.num_failed} failed + {overall.num_cancelled} cancelled",
    ]
    return Text("\n".join(lines))


def _figures(run: Run, overall: Figures, metrics: Sequence[str]) -> Table:
    table = _table("All requests (milliseconds; ? = unreliable, see below)")
    table.add_column("")
    table.add_column("n", justify="right")
    table.add_column("mean", justify="right")
    quantiles = [percentile.quantile for percentile in overall.metrics["ttft"].percentiles]
    for quantile in quantiles:
        table.add_column(quantile_name(quantile), justify="right")
    table.add_column(f"{quantile_name(quantiles[-1])} adj", justify="right")
    table.add_column("95 % CI", justify="right")
    for name in metrics:
        metric = overall.metrics[name]
        last = metric.percentiles[-1]
        mark = " ?" if touched(run.record.flags, name) and metric.num_samples else ""
        table.add_row(
            NAMES[name] + mark,
            f"{metric.num_samples:,}",
            milliseconds(metric.mean),
            *(milliseconds(percentile.value) for percentile in metric.percentiles),
            milliseconds(last.adj),
            "-" if last.low is None else f"{milliseconds(last.low)} to {milliseconds(last.high)}",
        )
    return table


def _totals(overall: Figures, run: Run) -> Table:
    table = _table("Totals")
    table.show_header = False
    table.add_column()
    table.add_column(justify="right")
    rows = [
        (f"Jitter within requests (ms){_mark(run, 'jitter')}", milliseconds(overall.jitter_s)),
        ("Longest gap (ms) / stalled gaps", f"{milliseconds(overall.max_gap_s)} / {percent(overall.stall_share)}"),
        (f"Output tokens per second{_mark(run, 'throughput')}", rate(overall.throughput.output_tokens_per_s)),
        ("Prompt tokens per second (cached)", _prompt_rate(overall)),
        ("Requests per second", rate(overall.throughput.requests_per_s)),
        ("Tokens per chunk / coalesced", f"{_number(overall.tokens_per_chunk)} / {percent(overall.coalesced_share)}"),
        ("Drain after the window", duration(overall.throughput.drain_s)),
    ]
    if overall.goodput:
        bounds = f" ({percent(overall.goodput.low)} to {percent(overall.goodput.high)})"
        rows.append(
            (
                "Goodput (requests/s) / attainment",
                f"{rate(overall.goodput.per_s)} / {percent(overall.goodput.attainment)}{bounds}",
            )
        )
        if missing := not_applicable(overall.goodput.num_not_applicable):
            rows.append(("SLOs that were not applicable", missing))
    if overall.parts_s:
        parts = ", ".join(f"{name} {milliseconds(value)}" for name, value in overall.parts_s.items())
        rows.append((f"Four parts of E2E, mean of {overall.num_with_parts} requests (ms)", parts))
    rows.append(("Most requests in flight", str(run.record.peak_in_flight)))
    rows.append(("Client loop lag P99 (ms) / CPU (s)", f"{milliseconds(run.record.loop_lag.p99_s)} / {run.record.cpu_s:.1f}"))
    if told := counted(run.record.server_counted):
        rows.append(("Server meanwhile, by its own metrics", told))
    for row in rows:
        table.add_row(*row)
    return table


def _mark(run: Run, metric: str) -> str:
    return " ?" if touched(run.record.flags, metric) else ""


def _prompt_rate(overall: Figures) -> str:
    throughput = overall.throughput
    return f"{rate(throughput.prompt_tokens_per_s)} ({rate(throughput.cached_tokens_per_s)})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _tiers(groups: Sequence[Figures]) -> Table:
    table = _table("By requested tier (milliseconds)")
    for title in ("tier", "ok", "lost", "TTFT P50", "P90", "P99 adj", "TPOT P50", "P99", "jitter", "max gap", "attainment"):
        table.add_column(title, justify="left" if title == "tier" else "right")
    for group in groups:
        ttft, tpot = group.metrics["ttft"], group.metrics["tpot"]
        table.add_row(
            group.name,
            str(group.num_ok),
            str(group.num_failed + group.num_cancelled),
            *(milliseconds(_at(ttft, quantile).value) for quantile in (0.5, 0.9)),
            milliseconds(_at(ttft, 0.99).adj),
            *(milliseconds(_at(tpot, quantile).value) for quantile in (0.5, 0.99)),
            milliseconds(group.jitter_s),
            milliseconds(group.max_gap_s),
            percent(group.goodput.attainment) if group.goodput else "-",
        )
    return table


def _flags(run: Run) -> Group:
    lines = []
    for flag in run.record.flags:
        names = f" [{', '.join(NAMES.get(name, name) for name in flag.metrics)}]" if flag.metrics else ""
        lines.append(Text(f"{flag.level.value.upper()}: {flag.message}{names}", style=_STYLES[flag.level]))
    return Group(*lines)


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
