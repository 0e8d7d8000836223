"""An ablation for people and for programs: console table, JSON, one HTML page. Pure but for the writing."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table as RichTable

from ultrafast.bench.ablate.checks import check
from ultrafast.bench.ablate.claims import Claim, claims
from ultrafast.bench.ablate.conversations import CLIENTS, TURNS
from ultrafast.bench.ablate.pipelines import OPTIMISATIONS
from ultrafast.bench.ablate.plot import LEGEND, STYLE, draw
from ultrafast.bench.ablate.records import Ablation
from ultrafast.bench.ablate.savings import QUANTILES, Percentile, Row, Saved, Table, tables
from ultrafast.bench.wording import duration, milliseconds, quantile_name

_NOTES = (
    "Saved: share of the naive pipeline's time; below 0 it costs. Savings of single optimisations do not add up: they overlap.",
    "Intervals are 95 % each, not adjusted for their number. Mean E2E: paired t over rounds; P95: bootstrap of conversations.",
    "~: too few requests for this percentile; it is the largest one that was seen.",
)
_CLAIM_OF = {TURNS: 0.975, CLIENTS: 0.77}


class Report:
    """What is said about an ablation; computed once, shown in three ways."""

    def __init__(self, ablation: Ablation) -> None:
        self._ablation = ablation
        self.tables = tables(ablation)
        self.claims = claims(ablation)
        self.flags = check(ablation, self.tables)

    @property
    def is_complete(self) -> bool:
        """Every request of every pipeline succeeded."""
        return not any(row.num_failed for table in self.tables for row in table.rows)

    def print(self, console: Console) -> None:
        """Tables, claims, flags, notes."""
        for table in self.tables:
            console.print(_rich(table))
            console.print()
        for line in [*(claim_text(claim) for claim in self.claims), *(f"NOTE: {flag}" for flag in self.flags), *_NOTES]:
            console.print(line, highlight=False, markup=False)

    def as_json(self) -> dict[str, Any]:
        """Seconds throughout; infinite times become null. Holds no text of the conversations."""
        spec = self._ablation.spec
        return {
            "started_at": self._ablation.started_at,
            "duration_s": self._ablation.duration_s,
            "num_rounds": self._ablation.num_rounds,
            "seed": spec.seed,
            "settings": spec.settings,
            "environment": self._ablation.environment,
            "pipelines": [
                {"name": one.name, "on": sorted(one.on), "is_streamed": one.is_streamed, "settings": one.settings}
                for one in spec.pipelines
            ],
            "workloads": [msgspec.to_builtins(workload) for workload in spec.workloads],
            "tables": msgspec.json.decode(msgspec.json.encode(self.tables)),
            "claims": msgspec.json.decode(msgspec.json.encode(self.claims)),
            "flags": self.flags,
        }

    def write_html(self, path: Path) -> None:
        """Write the page; the file appears complete or not at all."""
        temporary = path.with_name(path.name + ".partial")
        temporary.write_text(self.as_html(), encoding="utf-8")
        temporary.replace(path)

    def as_html(self) -> str:
        """One page that needs nothing else."""
        style = files("ultrafast.bench").joinpath("report.css").read_text(encoding="utf-8") + STYLE
        ablation = self._ablation
        model = ablation.environment.get("server.model", "")
        facts = f"{ablation.num_rounds} rounds in turn, {duration(ablation.duration_s)}, {ablation.started_at}"
        facts += f", seed {ablation.spec.seed}"
        claimed = "".join(f"<p>{escape(claim_text(claim))}</p>" for claim in self.claims)
        flags = "".join(f'<div class="flag note">{escape(flag)}</div>' for flag in self.flags)
        sections = "".join(self._section(table) for table in self.tables)
        notes = "".join(f'<p class="soft">{escape(note)}</p>' for note in _NOTES)
        meanings = "".join(f"<dt>{escape(one.title)}</dt><dd>{escape(one.meaning)}</dd>" for one in OPTIMISATIONS)
        environment = "".join(
            f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in sorted(ablation.environment.items())
        )
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>What each optimisation saves</title>'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head><body><main>'
            f'<h1>{escape(model)}: what each optimisation saves</h1><p class="soft">{escape(facts)}</p>{claimed}{flags}{sections}'
            f'{notes}<h2>The optimisations</h2><div class="panel"><dl>{meanings}</dl></div>'
            f'<h2>Conditions</h2><div class="panel"><table class="facts">{environment}</table></div></main></body></html>\n'
        )

    def _section(self, table: Table) -> str:
        claim = next((one for one in self.claims if one.published == _CLAIM_OF.get(table.workload)), None)
        head = "".join(f"<th>{escape(title)}</th>" for title in _HEAD)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(row)) + "</tr>" for row in table.rows)
        return (
            f'<h2>{escape(table.title[0].upper() + table.title[1:])}</h2><div class="panel">{LEGEND}'
            f'<div class="scroll">{draw(table, claim)}</div></div><div class="panel"><div class="scroll">'
            f'<table class="savings"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></div>'
        )


_HEAD = (
    "milliseconds",
    "saved E2E",
    "95 %",
    *(f"E2E {quantile_name(q)}" for q in QUANTILES),
    *(f"TTFT {quantile_name(q)}" for q in QUANTILES),
    "saved P95 TTFT",
    "95 %",
    "computed",
    "lost",
)


def _cells(row: Row) -> list[str]:
    e2e, ttft = row.saved.get("e2e"), row.saved.get("ttft_p95")
    num_computed = row.num_prompt_tokens - row.num_cached_tokens
    return [
        row.title,
        *saved_texts(e2e),
        *(_value(percentile) for percentile in (*row.e2e, *row.ttft)),
        *saved_texts(ttft),
        f"{num_computed:,}",
        str(row.num_failed),
    ]


def saved_texts(saved: Saved | None) -> tuple[str, str]:
    """A share and its interval as percent; dashes for what there is not."""
    if saved is None or saved.share is None:
        return "-", "-"
    reach = "-" if saved.low is None or saved.high is None else f"{100 * saved.low:.1f} to {100 * saved.high:.1f}"
    return f"{100 * saved.share:.1f} %", reach


def claim_text(claim: Claim) -> str:
    """A claim and what was found, in one sentence."""
    share, reach = saved_texts(claim.measured)
    found = "not measured: requests failed" if claim.measured.share is None else f"{share} less here ({claim.tested}"
    if claim.measured.share is not None:
        found += ")" if reach == "-" else f"; 95 % interval {reach})"
    condition = f", {claim.condition}" if claim.condition else ""
    return f"published: {100 * claim.published:g} % less {claim.text}; measured: {found}{condition}"


def _value(percentile: Percentile) -> str:
    return ("~" if percentile.is_largest else "") + milliseconds(percentile.value_s)


def _rich(table: Table) -> RichTable:
    shown = RichTable(
        title=f"{table.title} (milliseconds; computed: prompt tokens)",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for number, title in enumerate(_HEAD):
        shown.add_column("" if number == 0 else title, justify="left" if number == 0 else "right", no_wrap=True)
    for row in table.rows:
        shown.add_row(*_cells(row))
        if row.base is not None and row.added is not None:
            share, reach = saved_texts(row.added)
            base = next(one.title for one in table.rows if one.pipeline == row.base)
            shown.add_row(f"  against {base}", share, reach, *[""] * (len(_HEAD) - 3), style="dim")
    return shown
