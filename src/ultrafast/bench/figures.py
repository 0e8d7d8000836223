"""The figures of one request, out of its record. None means "not defined for this request", never 0.

Definitions: docs/bench.md, "What the figures mean". All times are seconds. TTFT and E2E run from the *planned* arrival, so that
a client or server that makes requests wait cannot hide it (coordinated omission; MLPerf LoadGen and wrk2 measure the same way).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ultrafast.bench.records import ChunkKind, RequestRecord
from ultrafast.bench.stats.gaps import request_jitter, stall_limit_s

COALESCED_GAP_S = 0.001
"""Chunks closer than this left the server, or a buffer on the way, together."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Where the time of a request went, seconds; the four sum to its E2E.

    Of a server that tells all of it (`server-timing`: queue, compute, total), as in its metrics:
    queue, compute: waiting for a place; first step to last token. output: the rest of the server's time.
    network: everything else that the client saw: dispatch, handshake, transfer, and what the server spent reading and writing.

    Of one that tells only what was before the first token (queue, prefill):
    queue, compute: the same up to there. output: first generated chunk to the last one. network: everything else.
    """

    network_s: float
    queue_s: float
    compute_s: float
    output_s: float


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """What one request came to.

    Attributes:
        ttfb_s: first byte sent to response head.
        ttfot_s: planned arrival to first generated chunk that is no reasoning.
        close_lag_s: last generated chunk to end of the body: servers that hold the stream open.
        tpot_s: mean time per token after the first chunk. is_first_assumed: that chunk was taken as one token.
        gaps_s: between consecutive generated chunks.
        itl: (gap per token in seconds, tokens) per chunk after the first; empty when chunk token counts are unknown.
        num_coalesced: gaps that say nothing: both chunks out of one read, or less than 1 ms apart.
    """

    ttft_s: float | None = None
    ttft_service_s: float | None = None
    dispatch_lag_s: float | None = None
    ttfb_s: float | None = None
    ttfot_s: float | None = None
    e2e_s: float | None = None
    close_lag_s: float | None = None
    tpot_s: float | None = None
    is_first_assumed: bool = False
    gaps_s: Sequence[float] = ()
    itl: Sequence[tuple[float, int]] = ()
    jitter_s: float | None = None
    max_gap_s: float | None = None
    num_stalls: int = 0
    num_coalesced: int = 0
    parts: Parts | None = None


def figures_of(record: RequestRecord) -> RequestFigures:
    """All figures of a request; what the record does not hold stays None. Also of a failed one, up to where it got."""
    if record.sent_ns is None:
        return RequestFigures()
    lag_s = _seconds(record.scheduled_ns, record.sent_ns)
    ttfb_s = None if record.headers_ns is None else _seconds(record.sent_ns, record.headers_ns)
    if not record.chunks:
        return RequestFigures(dispatch_lag_s=lag_s, ttfb_s=ttfb_s)
    first_ns, last_ns = record.chunks[0].stamp_ns, record.chunks[-1].stamp_ns
    gaps_s = [_seconds(a.stamp_ns, b.stamp_ns) for a, b in zip(record.chunks, record.chunks[1:], strict=False)]
    tpot_s, is_first_assumed = _tpot(record)
    visible_ns = next((chunk.stamp_ns for chunk in record.chunks if chunk.kind is not ChunkKind.REASONING), None)
    return RequestFigures(
        ttft_s=_seconds(record.scheduled_ns, first_ns),
        ttft_service_s=_seconds(record.sent_ns, first_ns),
        dispatch_lag_s=lag_s,
        ttfb_s=ttfb_s,
        ttfot_s=None if visible_ns is None else _seconds(record.scheduled_ns, visible_ns),
        e2e_s=_seconds(record.scheduled_ns, last_ns),
        close_lag_s=None if record.end_ns is None else _seconds(last_ns, record.end_ns),
        tpot_s=tpot_s,
        is_first_assumed=is_first_assumed,
        gaps_s=gaps_s,
        itl=_itl(record),
        jitter_s=request_jitter(gaps_s),
        max_gap_s=max(gaps_s, default=None),
        num_stalls=_count_stalls(gaps_s),
        num_coalesced=_count_coalesced(record, gaps_s),
        parts=_parts(record),
    )


def _seconds(start_ns: int, end_ns: int) -> float:
    return (end_ns - start_ns) / 1e9


def _tpot(record: RequestRecord) -> tuple[float | None, bool]:
    """(last - first) / (tokens - tokens of the first read).

    The first *read*, because a buffer may deliver several chunks at once; a chunk whose tokens are not told counts as one.
    """
    first = [record.chunks[0]]
    for chunk in record.chunks[1:]:
        if not chunk.is_coalesced:
            break
        first.append(chunk)
    is_assumed = any(chunk.num_tokens is None for chunk in first)
    num_output = record.usage.num_output_tokens
    if num_output is None:
        return None, is_assumed
    num_after_first = num_output - sum(1 if chunk.num_tokens is None else chunk.num_tokens for chunk in first)
    if num_after_first < 1 or len(record.chunks) == len(first):
        return None, is_assumed
    return _seconds(record.chunks[0].stamp_ns, record.chunks[-1].stamp_ns) / num_after_first, is_assumed


def _itl(record: RequestRecord) -> list[tuple[float, int]]:
    """Time per token, weighted by tokens. A chunk without a new token (held back text) adds its wait to the next one.

    Without counts per chunk, as many chunks as tokens mean one token each; anything else gives no sample.
    """
    if any(chunk.num_tokens is None for chunk in record.chunks):
        is_one_each = record.usage.num_output_tokens == len(record.chunks)
        pairs = zip(record.chunks, record.chunks[1:], strict=False)
        return [(_seconds(a.stamp_ns, b.stamp_ns), 1) for a, b in pairs] if is_one_each else []
    samples, last_ns = [], record.chunks[0].stamp_ns
    for chunk in record.chunks[1:]:
        if chunk.num_tokens:
            samples.append((_seconds(last_ns, chunk.stamp_ns) / chunk.num_tokens, chunk.num_tokens))
            last_ns = chunk.stamp_ns
    return samples


def _count_stalls(gaps_s: Sequence[float]) -> int:
    if not gaps_s:
        return 0
    limit_s = stall_limit_s(gaps_s)
    return sum(gap > limit_s for gap in gaps_s)


def _count_coalesced(record: RequestRecord, gaps_s: Sequence[float]) -> int:
    return sum(chunk.is_coalesced or gap < COALESCED_GAP_S for chunk, gap in zip(record.chunks[1:], gaps_s, strict=True))


def _parts(record: RequestRecord) -> Parts | None:
    """None when the server does not report its queue time. What it reports is cut to what the client saw."""
    timing = record.server_timing
    if "queue" not in timing:
        return None
    first_ns, last_ns = record.chunks[0].stamp_ns, record.chunks[-1].stamp_ns
    if {"compute", "total"} <= timing.keys():
        return _whole_parts(timing, _seconds(record.scheduled_ns, last_ns))
    ttft_s = _seconds(record.scheduled_ns, first_ns)
    queue_s = min(timing["queue"], ttft_s)
    compute_s = min(timing.get("prefill", timing.get("compute", 0.0)), ttft_s - queue_s)
    return Parts(ttft_s - queue_s - compute_s, queue_s, compute_s, _seconds(first_ns, last_ns))


def _whole_parts(timing: Mapping[str, float], e2e_s: float) -> Parts:
    queue_s = min(timing["queue"], e2e_s)
    compute_s = min(timing["compute"], e2e_s - queue_s)
    output_s = max(0.0, timing["total"] - timing["queue"] - timing["compute"] - timing.get("network", 0.0))
    output_s = min(output_s, e2e_s - queue_s - compute_s)
    return Parts(e2e_s - queue_s - compute_s - output_s, queue_s, compute_s, output_s)
