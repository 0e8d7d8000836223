"""A run, or a sweep of them, as one HTML file that needs nothing else: no script, no font, no image from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from ultrafast.bench.metrics import PARTS, Group, Summary, tiers_of
from ultrafast.bench.plots import against_load, at, distribution, load_of, parts_bars, tier_style, timeline
from ultrafast.bench.records import FlagLevel, Run
from ultrafast.bench.report_console import load_name
from ultrafast.bench.validity import touched
from ultrafast.bench.wording import GLOSSARY, NAMES, counted, duration, milliseconds, not_applicable, percent, quantile_name, rate

_TABLE_METRICS = ("ttft", "ttft_service", "ttfot", "tpot", "itl", "gap", "jitter", "max_gap", "e2e", "dispatch_lag", "close_lag")
Measured = Sequence[tuple[Run, Summary]]


def write_html(measured: Measured, path: Path) -> None:
    """Write the report; the file appears complete or not at all."""
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(render_html(measured), encoding="utf-8")
    temporary.replace(path)


def render_html(measured: Measured) -> str:
    """The page. Of a sweep, every load gets its own sections, after the plots against load."""
    first = measured[0][0]
    title = f"{first.record.scenario.model}: {first.record.scenario.name}"
    sections = [_sweep(measured)] if len(measured) > 1 else []
    for run, summary in sorted(measured, key=lambda pair: load_of(pair[0])):
        sections.append(_run(run, summary, has_heading=len(measured) > 1))
    style = files("ultrafast.bench").joinpath("report.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head><body><main>'
        f"{_head(measured)}{''.join(sections)}{_glossary()}</main></body></html>\n"
    )


def _head(measured: Measured) -> str:
    run = measured[0][0]
    scenario = run.record.scenario
    loads = ", ".join(load_name(one) for one, _ in measured)
    badge = _badge([flag.level for one, _ in measured for flag in one.record.flags])
    facts = [
        scenario.url + scenario.endpoint,
        scenario.name,
        f"closed loop, {loads}" if scenario.arrival == "closed" else f"{scenario.arrival} arrivals, {loads}",
        f"seed {scenario.seed}",
        run.record.started_at,
        f"Ultrafast {run.record.client_version}",
    ]
    return f'<h1>{escape(scenario.model)}{badge}</h1><p class="soft">{escape(" · ".join(facts))}</p>'


def _badge(levels: Sequence[FlagLevel]) -> str:
    if FlagLevel.INVALID in levels:
        return '<span class="badge bad">invalid, see below</span>'
    if FlagLevel.UNRELIABLE in levels:
        return '<span class="badge limited">valid with limits, see below</span>'
    return '<span class="badge good">valid</span>'


def _sweep(measured: Measured) -> str:
    ordered = sorted(measured, key=lambda pair: load_of(pair[0]))
    is_open = ordered[0][0].record.scenario.rate_per_s is not None
    load_label = "arrivals per second" if is_open else "requests at once"
    legend = _legend([("p50", "P50", ""), ("p99", "P99, failures counted as infinite; whiskers: 95 % interval", "dashed")])
    panels = [
        _panel(label, legend, against_load(ordered, metric, label, load_label))
        for metric, label in (("ttft", "TTFT"), ("gap", "Gap between chunks"))
    ]
    infinite = [load_name(run) for run, summary in ordered if at(summary.overall.metrics["ttft"], 0.99).is_adj_infinite]
    note = (
        f'<p class="soft">P99 of TTFT is infinite, because requests failed, at: {escape(", ".join(infinite))}.</p>'
        if infinite
        else ""
    )
    rows = [
        [
            load_name(run),
            str(summary.overall.num_ok),
            str(summary.overall.num_failed + summary.overall.num_cancelled),
            milliseconds(at(summary.overall.metrics["ttft"], 0.5).adj),
            milliseconds(at(summary.overall.metrics["ttft"], 0.99).adj),
            milliseconds(at(summary.overall.metrics["tpot"], 0.99).value),
            milliseconds(summary.overall.jitter_s),
            rate(summary.overall.throughput.output_tokens_per_s),
            "yes" if run.record.is_valid else "no",
        ]
        for run, summary in ordered
    ]
    head = ["load", "ok", "lost", "TTFT P50 (ms)", "TTFT P99 adj (ms)", "TPOT P99 (ms)", "jitter (ms)", "output tok/s", "valid"]
    return f'<h2>Latency against load</h2><div class="grid2">{"".join(panels)}</div>{note}<h2>Loads</h2>{_table(head, rows)}'


def _run(run: Run, summary: Summary, *, has_heading: bool) -> str:
    tiers = tiers_of(run.requests)
    curves = [(tier_style(tier, tiers), tier, "dashed" if tier == "flex" else "") for tier in tiers]
    legend = _legend(curves or [("tier-all", "all requests", "")])
    rows_legend = _legend(
        [
            *(curves or [("tier-all", "a chunk arrives", "")]),
            ("wait", "waiting for the first token", "dashed"),
            ("failed", "failed or cancelled", "cross"),
        ]
    )
    heading = f"<h2>Load {escape(load_name(run))}</h2>" if has_heading else ""
    plots = _panel("Time to first token", legend, distribution(run, "ttft", "TTFT", adjusted=True))
    plots += _panel("Gaps between chunks", legend, distribution(run, "gap", "Gap between chunks", adjusted=False))
    return (
        f"{heading}{_cards(run, summary.overall)}{_flags(run)}"
        f'<h2>Distributions</h2><div class="grid2">{plots}</div>'
        f"<h2>Timeline</h2>{_panel('Tokens of each request', rows_legend, timeline(run))}"
        f"<h2>Where the time goes</h2>{_parts(summary)}"
        f"<h2>Figures</h2>{_figures(run, summary)}"
        f"<h2>Conditions</h2>{_conditions(run)}"
    )


def _cards(run: Run, overall: Group) -> str:
    ttft, gap = overall.metrics["ttft"], overall.metrics["gap"]
    tail = at(ttft, 0.99)
    interval = (
        "too few requests for an interval"
        if tail.low is None
        else f"95 % CI {milliseconds(tail.low)} to {milliseconds(tail.high)}"
    )
    cards = [
        ("TTFT P50", milliseconds(at(ttft, 0.5).adj), "ms", f"{ttft.num_samples:,} requests", "ttft"),
        (f"TTFT {quantile_name(tail.quantile)}", milliseconds(tail.adj), "ms", interval, "ttft"),
        (
            "Gap P50",
            milliseconds(at(gap, 0.5).value),
            "ms",
            f"{quantile_name(at(gap, 0.99).quantile)} {milliseconds(at(gap, 0.99).value)} ms",
            "gap",
        ),
        ("Jitter", milliseconds(overall.jitter_s), "ms", f"longest gap {milliseconds(overall.max_gap_s)} ms", "jitter"),
        (
            "Output",
            rate(overall.throughput.output_tokens_per_s),
            "tokens/s",
            f"{rate(overall.throughput.requests_per_s)} requests/s",
            "throughput",
        ),
        ("Requests", f"{overall.num_ok:,}", "ok", f"{overall.num_failed} failed, {overall.num_cancelled} cancelled", ""),
    ]
    if overall.goodput:
        bounds = f"{percent(overall.goodput.low)} to {percent(overall.goodput.high)}"
        more = "; ".join(filter(None, (bounds, not_applicable(overall.goodput.num_not_applicable))))
        cards.append(("Within SLO", percent(overall.goodput.attainment).removesuffix(" %"), "%", more, ""))
    return f'<div class="cards">{"".join(_card(run, *card) for card in cards)}</div>'


def _card(run: Run, name: str, value: str, unit: str, more: str, metric: str) -> str:
    is_unsure = bool(metric) and touched(run.record.flags, metric) and value != "-"
    mark = ' <span class="unsure" title="unreliable, see the notes">?</span>' if is_unsure else ""
    return (
        f'<div class="card"><div class="name">{escape(name)}</div><div class="value">{value} '
        f'<span class="unit">{unit}</span>{mark}</div><div class="more">{escape(more)}</div></div>'
    )


def _flags(run: Run) -> str:
    lines = []
    for flag in run.record.flags:
        names = f" ({', '.join(NAMES.get(name, name) for name in flag.metrics)})" if flag.metrics else ""
        text = f"<b>{flag.level.value}</b>: {escape(flag.message + names)}"
        lines.append(f'<div class="flag {flag.level.value}">{text}</div>')
    return "".join(lines)


def _parts(summary: Summary) -> str:
    groups = summary.groups if len(summary.groups) == 1 else [*summary.groups[1:], summary.overall]
    bars = parts_bars(groups)
    if not bars:
        return '<p class="soft">This server does not report its queue and compute time (<code>server-timing</code> header).</p>'
    legend = _legend([(f"part-{name}", name, "box") for name in PARTS])
    note = (
        '<p class="soft">Mean of E2E, milliseconds. Queue, compute (first step to last token) and output (the rest of the '
        "server) as the server reports them; network: everything else that the client saw. Of a server that reports only its "
        "queue and prefill, compute ends with the first token, and output is from there to the last one.</p>"
    )
    return f'<div class="panel">{legend}{bars}{note}</div>'


def _figures(run: Run, summary: Summary) -> str:
    quantiles = [percentile.quantile for percentile in summary.overall.metrics["ttft"].percentiles]
    head = ["milliseconds", "n", "mean", *(quantile_name(q) for q in quantiles), f"{quantile_name(quantiles[-1])} adj", "95 % CI"]
    tables = []
    for group in summary.groups:
        rows = [_figure_row(run, group, metric) for metric in _TABLE_METRICS if group.metrics[metric].num_samples]
        name = "All requests" if group.name == "all" else f"Tier {group.name}"
        served = ", ".join(f"{count} in {tier}" for tier, count in sorted(group.served.items()))
        jitter = f"jitter within requests {milliseconds(group.jitter_s)} ms, stalled gaps {percent(group.stall_share)}"
        note = f'<p class="soft">{group.num_ok} ok, {jitter}{"; served: " + escape(served) if served else ""}</p>'
        tables.append(f'<div class="panel"><h3>{escape(name)}</h3>{note}{_table(head, rows)}</div>')
    return "".join(tables)


def _figure_row(run: Run, group: Group, metric: str) -> list[str]:
    figures = group.metrics[metric]
    last = figures.percentiles[-1]
    mark = " ?" if touched(run.record.flags, metric) else ""
    interval = "-" if last.low is None else f"{milliseconds(last.low)} to {milliseconds(last.high)}"
    values = [milliseconds(percentile.value) for percentile in figures.percentiles]
    return [
        NAMES[metric] + mark,
        f"{figures.num_samples:,}",
        milliseconds(figures.mean),
        *values,
        milliseconds(last.adj),
        interval,
    ]


def _conditions(run: Run) -> str:
    record, scenario = run.record, run.record.scenario
    asked = {
        "requests planned": str(scenario.num_planned),
        "window": duration(record.window.duration_s),
        "load": f"{load_name(run)}, burstiness {scenario.burstiness:g}",
        "prompt / output tokens asked": f"{scenario.input_len or 'own'} / {scenario.output_len or 'own'}",
        "shared prefix / turns": f"{scenario.shared_prefix_tokens} / {scenario.num_turns}",
        "tiers asked": ", ".join(f"{tier} {share:.0%}" for tier, share in scenario.tier_mix.items()) or "none",
        "cache": "cold: every prompt begins differently" if scenario.is_cache_cold else "may be warm",
        "SLO": ", ".join(f"{name} {limit * 1e3:g} ms" for name, limit in scenario.goodput.items()) or "none",
        "warm-up": f"{record.warm_up.num_requests} requests, {duration(record.warm_up.duration_s)}, excluded",
        "most in flight": str(record.peak_in_flight),
        "client loop lag P50 / P99 / longest": " / ".join(
            milliseconds(lag) for lag in (record.loop_lag.p50_s, record.loop_lag.p99_s, record.loop_lag.max_s)
        )
        + " ms",
        "client CPU": f"{record.cpu_s:.1f} s",
        "server meanwhile, by its own metrics": counted(record.server_counted) or "not told",
    } | scenario.metadata
    left, right = _facts(asked), _facts(record.environment)
    return f'<div class="grid2"><div class="panel">{left}</div><div class="panel">{right}</div></div>'


def _facts(facts: dict[str, str]) -> str:
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in sorted(facts.items()))
    return f'<table class="facts">{rows}</table>'


def _glossary() -> str:
    entries = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in GLOSSARY.items())
    return f'<h2>What the figures mean</h2><div class="panel"><dl>{entries}</dl></div>'


def _panel(title: str, legend: str, svg: str) -> str:
    return f'<div class="panel"><h3>{escape(title)}</h3>{legend}<div class="scroll">{svg}</div></div>'


def _legend(entries: Sequence[tuple[str, str, str]]) -> str:
    items = "".join(f'<span><i class="{style} {form}"></i>{escape(text)}</span>' for style, text, form in entries)
    return f'<div class="legend">{items}</div>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>'
