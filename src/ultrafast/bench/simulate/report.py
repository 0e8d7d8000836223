"""Outcomes for people: one table over all variants, one per variant. Pure but for the printing."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ultrafast.bench.simulate.outcome import Outcome, TierOutcome
from ultrafast.bench.wording import duration, milliseconds, percent, rate

_COLUMNS = (
    "tier",
    "requests",
    "attainment",
    "95 % CI",
    "goodput/s",
    "TTFT P50",
    "P95",
    "P99",
    "TPOT P50",
    "P95",
    "P99",
    "refused",
    "cached",
)


def print_outcomes(outcomes: Sequence[Outcome], console: Console) -> None:
    """Everything, the comparison first when there is one."""
    if len(outcomes) > 1:
        console.print(_comparison(outcomes))
        console.print()
    for outcome in outcomes:
        print_outcome(outcome, console)


def print_outcome(outcome: Outcome, console: Console) -> None:
    """One variant."""
    table = _table(f"{outcome.name}: {_engine(outcome)} (milliseconds)")
    for title in _COLUMNS:
        table.add_column(title, justify="left" if title == "tier" else "right", no_wrap=True)
    for tier in outcome.tiers:
        table.add_row(*_row(tier))
    console.print(table)
    for line in _notes(outcome):
        console.print(line, markup=False, highlight=False)
    console.print()


def _engine(outcome: Outcome) -> str:
    replicas = "1 replica" if outcome.num_replicas == 1 else f"{outcome.num_replicas} replicas, {outcome.routing}"
    return f"{replicas}, kv {outcome.kv_tokens}, step {outcome.step_target_s * 1000:g} ms"


def _row(tier: TierOutcome) -> tuple[str, ...]:
    return (
        tier.tier,
        f"{tier.num_requests:,}",
        percent(tier.attainment),
        f"{percent(tier.attainment_low)} to {percent(tier.attainment_high)}",
        rate(tier.goodput_per_s),
        *(milliseconds(value) for value in tier.ttft_s),
        *(milliseconds(value) for value in tier.tpot_s),
        f"{sum(tier.refused.values()):,}",
        percent(tier.cached_share),
    )


def _notes(outcome: Outcome) -> list[str]:
    busy = ", ".join(percent(share) for share in outcome.utilisation)
    first = (
        f"{duration(outcome.window_s)} of traffic, {duration(outcome.drain_s)} to drain; busy {busy}; "
        f"{outcome.tokens_per_step:.1f} tokens per step; {rate(outcome.output_tokens_per_s)} output tokens/s; "
        f"KV at most {percent(outcome.max_kv_share)}; at most {outcome.max_num_waiting:,} waiting"
    )
    lines = [first]
    for tier in outcome.tiers:
        parts = [f"{count:,} {reason}" for reason, count in tier.refused.items()]
        counts = {
            "downgraded": tier.num_downgraded,
            "cut short": tier.num_cut_short,
            "pauses": tier.num_pauses,
            "preemptions": tier.num_preemptions,
        }
        parts += [f"{count:,} {what}" for what, count in counts.items() if count]
        if parts:
            lines.append(f"{tier.tier}: {', '.join(parts)}")
    return lines


def _comparison(outcomes: Sequence[Outcome]) -> Table:
    names = list(dict.fromkeys(tier.tier for outcome in outcomes for tier in outcome.tiers))
    table = _table("Attainment by tier and variant")
    for title in ("variant", *names, "all", "refused", "busy", "output tokens/s"):
        table.add_column(title, justify="left" if title == "variant" else "right", no_wrap=True)
    for outcome in outcomes:
        shares = {tier.tier: percent(tier.attainment) for tier in outcome.tiers}
        table.add_row(
            outcome.name,
            *(shares.get(name, "-") for name in names),
            percent(outcome.attainment),
            f"{outcome.num_refused:,}",
            percent(sum(outcome.utilisation) / len(outcome.utilisation)),
            rate(outcome.output_tokens_per_s),
        )
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
