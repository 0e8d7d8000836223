"""How far a run can be trusted: flags for what would otherwise be a wrong number without a warning. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from ultrafast.bench.metrics import Group, Summary, samples
from ultrafast.bench.records import Flag, FlagLevel, RequestRecord, Run

MAX_COALESCED_SHARE = 0.05
MAX_TOKENS_PER_CHUNK = 1.1
MAX_LENGTH_ERROR = 0.02
MIN_RATE_SHARE = 0.98
MAX_LAG_SHARE = 0.1
"""Largest loop lag, as a share of the median of what is measured."""
MIN_LAG_S = 0.005
"""Below this, lag is the timer's own grain and the machine's, not overload."""
MAX_CPU_SHARE = 0.9
MIN_WINDOW_SHARE = 3.0
"""Shortest window, in median request lengths, over which a rate means something."""

_GAP_METRICS = ("itl", "gap", "jitter", "max_gap")


def judge(run: Run, summary: Summary, num_planned: int) -> list[Flag]:
    """Every flag of a run, the gravest first."""
    overall = summary.overall
    ok = [request for request in run.requests if request.is_ok]
    checks: list[Callable[[], list[Flag]]] = [
        lambda: _conservation(overall, num_planned),
        lambda: _loop_lag(run),
        lambda: _client_cpu(run),
        lambda: _dispatch(run),
        lambda: _failures(run, overall),
        lambda: _chunking(overall),
        lambda: _usage(ok),
        lambda: _buffering(ok, overall),
        lambda: _prompt_lengths(ok),
        lambda: _output_lengths(ok),
        lambda: _cache(run, ok),
        lambda: _window(run),
        lambda: _server(run),
        lambda: _tiers(ok),
        lambda: _warm_up(run),
    ]
    order = list(FlagLevel)
    return sorted((flag for check in checks for flag in check()), key=lambda flag: order.index(flag.level))


def _conservation(overall: Group, num_planned: int) -> list[Flag]:
    num_seen = overall.num_ok + overall.num_failed + overall.num_cancelled
    if num_seen == num_planned:
        return []
    text = f"{num_planned} requests were planned, but {num_seen} are accounted for (ok + failed + cancelled)."
    return [Flag("conservation", FlagLevel.INVALID, text)]


def _loop_lag(run: Run) -> list[Flag]:
    lag_s = run.record.loop_lag.p99_s
    if lag_s <= MIN_LAG_S:
        return []
    ttfts, gaps = samples(run.requests, "ttft_service"), samples(run.requests, "gap")
    found = []
    if ttfts and lag_s > MAX_LAG_SHARE * median(ttfts):
        text = f"The client's own event loop was {lag_s * 1e3:.1f} ms late at P99: it is the bottleneck, not the server."
        found.append(Flag("loop_lag", FlagLevel.INVALID, text + " Use --processes, a lower load or another machine."))
    elif gaps and lag_s > MAX_LAG_SHARE * median(gaps):
        text = f"The client's event loop was {lag_s * 1e3:.1f} ms late at P99: too much for gaps this short."
        found.append(Flag("loop_lag", FlagLevel.UNRELIABLE, text, _GAP_METRICS))
    return found


def _client_cpu(run: Run) -> list[Flag]:
    spans = [r.end_ns for r in run.requests if r.end_ns is not None]
    wall_s = (max(spans, default=0) - run.record.window.start_ns) / 1e9
    share = run.record.cpu_s / wall_s / max(1, run.record.scenario.num_processes) if wall_s > 1.0 else 0.0
    if share <= MAX_CPU_SHARE:
        return []
    text = f"The client used {share:.0%} of a core per process: it is the bottleneck. Use --processes or a lower load."
    return [Flag("client_cpu", FlagLevel.INVALID, text)]


def _dispatch(run: Run) -> list[Flag]:
    window, scenario = run.record.window, run.record.scenario
    planned = [r for r in run.requests if window.start_ns <= r.scheduled_ns <= window.end_ns]
    if scenario.rate_per_s is None or len(planned) < 10 or scenario.concurrency is not None:
        return []
    num_sent = sum(r.sent_ns is not None and r.sent_ns <= window.end_ns for r in planned)
    if num_sent >= MIN_RATE_SHARE * len(planned) - 1:
        return []
    text = f"Only {num_sent} of {len(planned)} requests left in time: the planned rate was not reached."
    return [Flag("late_dispatch", FlagLevel.INVALID, text)]


def _failures(run: Run, overall: Group) -> list[Flag]:
    if not overall.num_failed:
        return []
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(overall.failures.items()))
    text = f"{overall.num_failed} of {overall.num_planned} requests failed ({kinds}); they count as infinite in `adj`."
    first = next((request.failure for request in run.requests if request.failure is not None and request.failure.message), None)
    if first is not None:
        text += f" The first: {first.message}"
    return [Flag("failures", FlagLevel.NOTE, text)]


def _chunking(overall: Group) -> list[Flag]:
    found = []
    share = overall.coalesced_share or 0.0
    if share > MAX_COALESCED_SHARE:
        text = f"{share:.0%} of the chunks arrived together with the one before: "
        text += "the gaps are those of a buffer on the way, or of a server that guesses tokens."
        found.append(Flag("coalesced", FlagLevel.UNRELIABLE, text, _GAP_METRICS))
    is_counted = overall.metrics["itl"].num_samples > 0
    per_chunk = overall.tokens_per_chunk or 0.0
    if per_chunk > MAX_TOKENS_PER_CHUNK and not is_counted:
        text = f"A chunk holds {per_chunk:.2f} tokens on average and the server does not say how many each holds."
        found.append(Flag("tokens_per_chunk", FlagLevel.UNRELIABLE, text, ("itl", "jitter", "tpot")))
    return found


def _usage(ok: Sequence[RequestRecord]) -> list[Flag]:
    num_silent = sum(request.usage.num_output_tokens is None for request in ok)
    if not num_silent:
        return []
    text = f"{num_silent} of {len(ok)} answers came without usage: their token counts are unknown and are not guessed."
    return [Flag("tokens_unknown", FlagLevel.UNRELIABLE, text, ("tpot", "itl", "jitter", "throughput"))]


def _buffering(ok: Sequence[RequestRecord], overall: Group) -> list[Flag]:
    """Most chunks in one go after a long wait: the first token's time is that of the whole answer."""
    if (overall.coalesced_share or 0.0) <= 0.5:
        return []
    num_bursts = 0
    for request in ok:
        first_ns, last_ns = request.chunks[0].stamp_ns, request.chunks[-1].stamp_ns
        num_bursts += last_ns - first_ns < 0.1 * (first_ns - (request.sent_ns or 0))
    if num_bursts <= len(ok) / 2:
        return []
    text = "Answers arrive in one burst: something buffers the stream, so TTFT is nearly E2E and TPOT means nothing."
    return [Flag("buffered", FlagLevel.UNRELIABLE, text, ("ttft", "ttft_service", "tpot", *_GAP_METRICS))]


def _prompt_lengths(ok: Sequence[RequestRecord]) -> list[Flag]:
    pairs = [(r.num_asked_prompt_tokens, r.usage.num_prompt_tokens) for r in ok]
    known = [(asked, got) for asked, got in pairs if asked is not None and got is not None]
    if not known:
        return []
    num_off = sum(abs(got - asked) > max(2, MAX_LENGTH_ERROR * asked) for asked, got in known)
    total = sum(got for _, got in known) / max(1, sum(asked for asked, _ in known))
    if abs(total - 1) <= MAX_LENGTH_ERROR and num_off <= 0.1 * len(known):
        return []
    text = f"Prompts were not as long as asked: {total:.1%} of the tokens in all, {num_off} of {len(known)} off by more than 2 %."
    return [Flag("prompt_length", FlagLevel.UNRELIABLE, text, ("ttft", "ttft_service", "e2e"))]


def _output_lengths(ok: Sequence[RequestRecord]) -> list[Flag]:
    pairs = [(r.num_asked_output_tokens, r.usage.num_output_tokens) for r in ok]
    known = [(asked, got) for asked, got in pairs if asked is not None and got is not None]
    num_short = sum(got < asked * (1 - MAX_LENGTH_ERROR) for asked, got in known)
    if not num_short:
        return []
    middle = median(got for _, got in known)
    text = f"{num_short} of {len(known)} answers ended before the length asked for (median {middle:g} tokens)."
    return [Flag("output_length", FlagLevel.UNRELIABLE, text, ("e2e",))]


def _cache(run: Run, ok: Sequence[RequestRecord]) -> list[Flag]:
    known = [r.usage for r in ok if r.usage.num_cached_tokens is not None and r.usage.num_prompt_tokens]
    num_prompt = sum(usage.num_prompt_tokens or 0 for usage in known)
    if not num_prompt:
        return []
    # What every prompt shares is the chat template around it; the calibration measured it.
    num_template = int(run.record.environment.get("server.template_tokens", "0"))
    excess = sum(max(0, (usage.num_cached_tokens or 0) - num_template - 8) for usage in known) / num_prompt
    share = sum(usage.num_cached_tokens or 0 for usage in known) / num_prompt
    if run.record.scenario.is_cache_cold and excess > MAX_LENGTH_ERROR:
        text = f"{share:.0%} of the prompt tokens came from the server's cache, though every prompt began with a nonce."
        return [Flag("warm_cache", FlagLevel.UNRELIABLE, text, ("ttft", "ttft_service", "e2e"))]
    return [Flag("cached", FlagLevel.NOTE, f"{share:.0%} of the prompt tokens came from the server's cache.")]


def _window(run: Run) -> list[Flag]:
    """An open loop that is over before the first answers are: what was counted is the start, not the steady state."""
    lengths = samples(run.requests, "e2e")
    window_s = run.record.window.duration_s
    if run.record.scenario.arrival == "closed" or not lengths or window_s >= MIN_WINDOW_SHARE * median(lengths):
        return []
    text = f"The window of {window_s:.1f} s is short beside requests of {median(lengths):.1f} s: rates are those of the start."
    return [Flag("short_window", FlagLevel.UNRELIABLE, text, ("throughput",))]


def _server(run: Run) -> list[Flag]:
    counted, found = run.record.server_counted, []
    if number := counted.get("restarts"):
        text = f"The server replaced its engine {number:g} times meanwhile: the figures are those of a failure."
        found.append(Flag("engine_restarted", FlagLevel.UNRELIABLE, text))
    if number := counted.get("preemptions"):
        text = f"The server preempted {number:g} sequences for want of KV: another run of the same load will differ."
        found.append(Flag("preempted", FlagLevel.UNRELIABLE, text, ("tpot", "e2e", "throughput", *_GAP_METRICS)))
    return found


def _tiers(ok: Sequence[RequestRecord]) -> list[Flag]:
    num_moved = sum(bool(r.tier_requested and r.tier_served and r.tier_served != r.tier_requested) for r in ok)
    num_silent = sum(bool(r.tier_requested and not r.tier_served) for r in ok)
    found = []
    if num_moved:
        found.append(Flag("tier_moved", FlagLevel.NOTE, f"{num_moved} requests were served in another tier than asked for."))
    if num_silent:
        text = f"The server did not say which tier it served in {num_silent} answers: it may ignore service_tier."
        found.append(Flag("tier_unknown", FlagLevel.NOTE, text))
    return found


def _warm_up(run: Run) -> list[Flag]:
    if run.record.warm_up.is_steady:
        return []
    text = "The warm-up ended before the TTFT was steady: the first requests may still pay for it."
    if not run.record.warm_up.num_requests:
        text = "There was no warm-up: the first requests pay for it."
    return [Flag("warm_up", FlagLevel.NOTE, text)]


def touched(flags: Sequence[Flag], metric: str) -> bool:
    """Whether a metric must be marked as unreliable."""
    return any(flag.level is not FlagLevel.NOTE and (not flag.metrics or metric in flag.metrics) for flag in flags)
