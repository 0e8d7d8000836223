"""What one request and one run left behind: raw stamps and facts, no figures. Everything else is computed from these.

All stamps (`*_ns`) are nanoseconds of `time.perf_counter_ns`, less the origin of the run: 0 is the moment that the run began,
for every worker process of it (on Linux the clock is shared by all processes of a machine). A stamp that does not exist is None.

    scheduled --dispatch lag--> sent --> headers --> chunks[0] ... chunks[-1] --close lag--> end
    |<------------- TTFT ------------------------->|             |
    |<------------------------------------ E2E ----------------->|
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

SCHEMA_VERSION = 1
"""Goes up when a reader of old files would misunderstand a new one."""


class ChunkKind(StrEnum):
    """What a generated chunk carried. Reasoning counts as output; only `ttfot` skips it."""

    CONTENT = "content"
    REASONING = "reasoning"
    TOOL = "tool"


class Outcome(StrEnum):
    """How a request ended, as its client saw it. Exactly one per planned request."""

    OK = "ok"
    FAILED = "failed"
    CANCELLED = "cancelled"
    """Planned, but given up by the bench itself: budget used up, or stopped by the user."""


class ErrorClass(StrEnum):
    """Why a request failed."""

    CONNECT = "connect"
    """No connection: refused, unreachable, name or certificate wrong."""
    OVERLOADED = "overloaded"
    """HTTP 429 or 503: the server said that it has no room."""
    CLIENT_ERROR = "client_error"
    """Another HTTP 4xx: the request is at fault."""
    SERVER_ERROR = "server_error"
    """Another HTTP status that is not 200."""
    STREAM_ERROR = "stream_error"
    """An error event inside a stream that began with HTTP 200."""
    CUT = "cut"
    """The stream ended without a finish reason and without `[DONE]`, or the body ended early."""
    EMPTY = "empty"
    """A complete answer without a single generated chunk."""
    PROTOCOL = "protocol"
    """Bytes that are no HTTP/1.1, no event stream or no JSON."""
    TIMEOUT = "timeout"
    """Not finished within the time limit of a request."""


class Chunk(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One generated chunk: a delta with text, reasoning or a tool call. Role, usage, finish and comments never become one.

    Attributes:
        stamp_ns: when the read that completed the event returned, before any parsing.
        num_tokens: tokens in this chunk, by the server's count (`continuous_usage_stats`); None when it does not tell.
        is_coalesced: another generated chunk came out of the same read before it, so the gap to it says nothing.
        kind: of the output.
    """

    stamp_ns: int
    num_tokens: int | None = None
    is_coalesced: bool = False
    kind: ChunkKind = ChunkKind.CONTENT


class Usage(msgspec.Struct, frozen=True):
    """The server's own token counts. None: it did not say. Reasoning tokens are part of the output tokens."""

    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_reasoning_tokens: int | None = None


class Failure(msgspec.Struct, frozen=True):
    """Why a request has no good answer.

    Attributes:
        message: for a person; never contains keys or prompt text.
        status: HTTP status, if there was one.
        code: the server's own error code, if it gave one.
        retry_after_s: what the server asked for, seconds.
    """

    kind: ErrorClass
    message: str
    status: int | None = None
    code: str | None = None
    retry_after_s: float | None = None


class RequestRecord(msgspec.Struct, kw_only=True):
    """One planned request and everything seen of it.

    Attributes:
        index: position in the plan, from 0; unique in a run.
        prompt_id: which prompt text it used; requests of the same session share a prefix on purpose.
        session, turn: conversation number and turn in it, from 0; single requests have one session each.
        tier_requested, tier_served: service tier sent, and the one the server says it used. None: not sent, not said.
        scheduled_ns: planned arrival (open loop), or when its slot became free (closed loop).
        sent_ns: first byte written. headers_ns: response head complete. end_ns: body complete (or given up).
        num_asked_prompt_tokens, num_asked_output_tokens: what the workload wanted. None: it had no wish.
        server_timing: parts told by the `server-timing` header, or by such a comment at the end of a stream, seconds by name:
            queue, prefill, compute, network, total.
        is_new_connection: it had to open one; its TTFT then contains the handshake.
        worker: number of the worker process.
    """

    index: int
    outcome: Outcome
    scheduled_ns: int
    prompt_id: str = ""
    session: int = 0
    turn: int = 0
    worker: int = 0
    tier_requested: str | None = None
    tier_served: str | None = None
    sent_ns: int | None = None
    headers_ns: int | None = None
    end_ns: int | None = None
    chunks: list[Chunk] = []
    usage: Usage = Usage()
    finish_reason: str | None = None
    failure: Failure | None = None
    num_asked_prompt_tokens: int | None = None
    num_asked_output_tokens: int | None = None
    server_timing: dict[str, float] = {}
    request_id: str | None = None
    is_new_connection: bool = False

    @property
    def is_ok(self) -> bool:
        return self.outcome is Outcome.OK


class Window(msgspec.Struct, frozen=True):
    """The measured span: end of warm-up to last planned arrival (closed loop: to the last moment all slots were busy).

    The drain after it is not part of it. Throughput and goodput count what falls inside; percentiles take every request
    that was scheduled inside, which is all that the plan holds.
    """

    start_ns: int
    end_ns: int

    @property
    def duration_s(self) -> float:
        """Seconds; never negative."""
        return max(0, self.end_ns - self.start_ns) / 1e9


class FlagLevel(StrEnum):
    """What a flag means for the run."""

    INVALID = "invalid"
    """The figures are not the server's: do not use them."""
    UNRELIABLE = "unreliable"
    """The figures named in `metrics` are not to be trusted; the others are."""
    NOTE = "note"
    """Worth knowing when reading the figures."""


class Flag(msgspec.Struct, frozen=True):
    """Something that limits what the run proves.

    Attributes:
        code: stable name: loop_lag, late_dispatch, conservation, prompt_length, output_length, coalesced, tokens_unknown, ...
        metrics: names of the metrics it touches (`ttft`, `itl`, ...); empty: all of them.
    """

    code: str
    level: FlagLevel
    message: str
    metrics: tuple[str, ...] = ()


class Scenario(msgspec.Struct, kw_only=True, frozen=True):
    """The conditions that make two runs comparable: what was asked, of whom, how. Free of secrets.

    Attributes:
        arrival: "poisson", "gamma", "constant", "replay:FILE" or "closed".
        rate_per_s: planned mean arrivals per second. None: closed loop.
        burstiness: shape of the gamma gaps; 1 is Poisson.
        concurrency: slots (closed loop) or cap on requests in flight (open loop). None: no cap.
        input_len, output_len: length distributions as written, for example "512", "uniform:64-256", "lognormal:512,0.5".
        shape: workload name: "short-short", "shared-prefix", "multi-turn", "file:NAME", ...
        tier_mix: share by tier; empty: no tier is sent.
        is_cache_cold: each prompt starts with a nonce, so that no prefix cache can help.
        num_planned: requests in the plan, warm-up not included.
    """

    name: str
    url: str
    model: str
    endpoint: str
    arrival: str
    rate_per_s: float | None = None
    burstiness: float = 1.0
    concurrency: int | None = None
    shape: str = ""
    input_len: str = ""
    output_len: str = ""
    shared_prefix_tokens: int = 0
    num_turns: int = 1
    tier_mix: dict[str, float] = {}
    is_cache_cold: bool = True
    ignores_eos: bool = False
    num_planned: int = 0
    num_processes: int = 1
    seed: int = 0
    goodput: dict[str, float] = {}
    """SLO limits by name (ttft, tpot, e2e, jitter, max_gap), seconds."""
    metadata: dict[str, str] = {}


class LoopLag(msgspec.Struct, frozen=True):
    """How late the client's own event loop woke, seconds. Large values mean that the client was the bottleneck."""

    p50_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0
    num_samples: int = 0


class WarmUp(msgspec.Struct, frozen=True):
    """What was sent before the window and left out of all figures."""

    num_requests: int = 0
    duration_s: float = 0.0
    is_steady: bool = False
    median_ttft_s: list[float] = []
    """Of each warm-up round, in order."""


class RunRecord(msgspec.Struct, kw_only=True):
    """One run: its conditions, its environment, how far it can be trusted. The requests are kept beside it.

    Attributes:
        run_id: random, unique.
        started_at: wall time, ISO 8601 with offset; for people, never for durations.
        environment: fingerprint as flat text fields, `client.*` and `server.*`.
        peak_in_flight: most requests that were open at once.
    """

    type: Literal["run"] = "run"
    schema_version: int = SCHEMA_VERSION
    run_id: str
    started_at: str
    client_version: str
    scenario: Scenario
    window: Window
    environment: dict[str, str] = {}
    warm_up: WarmUp = WarmUp()
    loop_lag: LoopLag = LoopLag()
    flags: list[Flag] = []
    peak_in_flight: int = 0
    cpu_s: float = 0.0
    """CPU time of the client during the run, all processes."""
    server_counted: dict[str, float] = {}
    """What the server's own metrics counted meanwhile (see `server_metrics`); empty where it shows none."""

    @property
    def is_valid(self) -> bool:
        """No flag says that the figures are not the server's."""
        return not any(flag.level is FlagLevel.INVALID for flag in self.flags)


class Run(msgspec.Struct):
    """A run with all its requests, in the order of `index`."""

    record: RunRecord
    requests: list[RequestRecord]
