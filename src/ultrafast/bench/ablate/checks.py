"""What limits what an ablation proves: found in its own records. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ultrafast.bench.ablate.records import Ablation
from ultrafast.bench.ablate.savings import MIN_ROUNDS, Row, Table
from ultrafast.bench.wording import milliseconds

_MAX_LENGTH_SHARE = 0.02
_MAX_LAG_SHARE = 0.1


def check(ablation: Ablation, tables: list[Table]) -> list[str]:
    """One sentence for each thing to know; the first ones weigh most."""
    found = list(ablation.flags)
    for table in tables:
        found += [f"{table.title}: {text}" for text in _of_table(ablation, table)]
    if ablation.num_rounds < ablation.spec.num_rounds:
        found.append(f"only {ablation.num_rounds} of {ablation.spec.num_rounds} rounds fitted into --max-duration")
    if ablation.num_rounds < MIN_ROUNDS:
        found.append(f"fewer than {MIN_ROUNDS} rounds: there is no interval for the mean E2E")
    return found


def _of_table(ablation: Ablation, table: Table) -> Iterator[str]:
    on = {pipeline.name: pipeline.on for pipeline in ablation.spec.pipelines}
    naive = table.rows[0]
    for row in table.rows:
        if row.num_failed:
            yield f"{row.title}: {row.num_failed} requests failed; they count as infinitely slow"
        is_reusing = "prefix-reuse" in on[row.pipeline]
        if row.num_cached_tokens and not is_reusing:
            yield f"{row.title}: the server reused {row.num_cached_tokens} prompt tokens although reuse is off"
        if abs(row.num_prompt_tokens - naive.num_prompt_tokens) > _MAX_LENGTH_SHARE * naive.num_prompt_tokens:
            yield f"{row.title}: {row.num_prompt_tokens} prompt tokens, {naive.num_prompt_tokens} in the naive pipeline"
        yield from _lag(ablation, table, row)


def _lag(ablation: Ablation, table: Table, row: Row) -> Iterator[str]:
    runs = ablation.runs_of(row.pipeline, table.workload)
    lag_s = max((run.loop_lag.p99_s for run in runs), default=0.0)
    if lag_s > _MAX_LAG_SHARE * row.ttft[0].value_s:
        late, ttft = milliseconds(lag_s), milliseconds(row.ttft[0].value_s)
        yield f"{row.title}: the client itself was up to {late} ms late (P99), beside a TTFT P50 of {ttft} ms"
