"""A warm-up plan from records of requests. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ultrafast.core.errors import UltrafastError
from ultrafast.engine.warmup_plan import WarmupPlan
from ultrafast.observe.request_log.record import LogRecord
from ultrafast.plan.warmup.prefixes import Choice, shared_prefixes
from ultrafast.plan.warmup.shapes import cluster_lengths, concurrency_levels


class NoTrafficError(UltrafastError):
    """There is nothing to make a plan from."""

    code = "no_traffic"


def make_plan(
    records: Sequence[LogRecord], num_block_tokens: int, key_file: str | None, choice: Choice | None = None
) -> WarmupPlan:
    """Shapes of what was computed, and the beginnings that were shared.

    With `key_file`, where the key of the names is, None, prefixes are left out: nobody could find them.

    Raises:
        NoTrafficError: not one request was computed.
    """
    served = [record for record in records if record.ttft_s is not None]
    if not served:
        raise NoTrafficError("The log holds no request that got an answer.", hint="Let the server run for a while first.")
    streams = [(record.arrival + (record.ttft_s or 0.0), record.arrival + record.e2e_s) for record in served]
    chains = [(record.space, record.prefix) for record in served if record.prefix]
    begins = [record.arrival for record in records]
    return WarmupPlan(
        chunks=cluster_lengths([record.prompt_tokens - record.cached_tokens for record in served]),
        decodes=concurrency_levels(streams),
        prefixes=shared_prefixes(chains, num_block_tokens, choice or Choice()) if key_file is not None else [],
        key_file=key_file,
        num_requests=len(records),
        period_s=round(max(begins) - min(begins), 3),
    )
