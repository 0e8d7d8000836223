"""Every metric that the server exports: name, unit, help, labels and buckets, in this file only.

Names are `ultrafast_<noun>_<unit>`, counters end in `_total`, times are seconds. Labels take their values from closed lists,
never from ids or from what a client wrote. Samples are made in `recorder.py`; `docs/metrics.md` lists the names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from ultrafast.observe import buckets
from ultrafast.observe.gen_ai import GenAiNames

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
"""What `Metrics.render` returns."""
KV_BLOCK_TOKENS = 32
"""KV is reported in blocks of so many tokens."""


class Outcome(StrEnum):
    """How a call ended: exactly one per call.

    completed: the answer is whole, or as long as its limits allow. rejected: refused before the queue, for want of room, time or
    an engine. invalid: can never be answered as it stands. expired: its time in the queue ran out. aborted: the client went away
    or stopped reading. failed: our fault.
    """

    COMPLETED = "completed"
    REJECTED = "rejected"
    INVALID = "invalid"
    EXPIRED = "expired"
    ABORTED = "aborted"
    FAILED = "failed"


class LatencyPart(StrEnum):
    """Where the time of a call went; the four sum to the time from the arrival to the last byte.

    network: reading the request, and waiting for a slow reader. queue: waiting for a place in the engine.
    compute: from the first step to the last token. output: everything else. The arrival is when the event loop reads the first
    byte; how late it may have been with that is `Metrics.event_loop_lag`.
    """

    NETWORK = "network"
    QUEUE = "queue"
    COMPUTE = "compute"
    OUTPUT = "output"


class Metrics:
    """The registry and its metrics. One per server; a test makes its own.

    Args:
        ttft_objectives_s: configured objectives for the time to first token; become bucket edges.
        tpot_objectives_s, e2e_objectives_s, jitter_objectives_s: the same for the time per output token, until the last byte, and
            the standard deviation of the gaps.
    """

    def __init__(
        self,
        ttft_objectives_s: Iterable[float] = (),
        tpot_objectives_s: Iterable[float] = (),
        e2e_objectives_s: Iterable[float] = (),
        jitter_objectives_s: Iterable[float] = (),
    ) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._before_read = _BeforeRead()
        self.registry.register(self._before_read)  # first, for collectors are asked in this order
        ProcessCollector(registry=self.registry)
        ttft_edges = buckets.with_objectives(buckets.TTFT_EDGES_S, ttft_objectives_s)
        itl_edges = buckets.with_objectives(buckets.ITL_EDGES_S, tpot_objectives_s)
        e2e_edges = buckets.with_objectives(buckets.E2E_EDGES_S, e2e_objectives_s)
        self._add_latencies(ttft_edges, itl_edges, e2e_edges, buckets.with_objectives(itl_edges, jitter_objectives_s))
        self._add_requests()
        self._add_engine(itl_edges)
        self.gen_ai = GenAiNames(
            {
                "gen_ai_server_time_to_first_token_seconds": self.ttft,
                "gen_ai_server_time_per_output_token_seconds": self.tpot,
                "gen_ai_server_request_duration_seconds": self.e2e,
            }
        )
        self.registry.register(self.gen_ai)

    def _add_latencies(
        self,
        ttft_edges: tuple[float, ...],
        itl_edges: tuple[float, ...],
        e2e_edges: tuple[float, ...],
        jitter_edges: tuple[float, ...],
    ) -> None:
        self.ttft = self._histogram(
            "ttft_seconds", "From the arrival of a call to its first generated delta.", ["tier"], ttft_edges
        )
        self.itl = self._histogram(
            "itl_seconds", "Time between two output tokens of a choice; one sample per token.", ["tier"], itl_edges
        )
        self.tpot = self._histogram(
            "tpot_seconds", "Mean time per output token after the first delta; one sample per choice.", ["tier"], itl_edges
        )
        self.jitter = self._histogram(
            "jitter_seconds",
            "Standard deviation of the gaps between the deltas of a choice (three gaps or more).",
            ["tier"],
            jitter_edges,
        )
        self.e2e = self._histogram(
            "e2e_seconds", "From the arrival of a call to the last byte of its answer.", ["tier"], e2e_edges
        )
        self.latency_part = self._histogram(
            "latency_part_seconds",
            "The same time in parts that sum to it: network, queue, compute, output.",
            ["tier", "part"],
            buckets.PART_EDGES_S,
        )
        self.event_loop_lag = self._histogram(
            "event_loop_lag_seconds", "How late the event loop of the API process was.", [], buckets.PART_EDGES_S
        )
        self.queue = self._histogram(
            "queue_seconds", "From the arrival of a sequence to its first place in the engine.", ["tier"], ttft_edges
        )
        self.prefill = self._histogram(
            "prefill_seconds", "From the first place in the engine to the first token of a sequence.", ["tier"], ttft_edges
        )

    def _add_requests(self) -> None:
        self.requests = self._counter("requests", "Calls that ended, by how.", ["tier", "outcome"])
        self.requests_in_flight = self._gauge("requests_in_flight", "Calls that were received and have not ended.")
        self.requests_waiting = self._gauge("requests_waiting", "Sequences that wait for a place in the engine.")
        self.requests_running = self._gauge("requests_running", "Sequences that have a place in the engine.")
        self.requests_paused = self._gauge(
            "requests_paused", "Sequences that stand aside for more urgent ones and keep their KV."
        )
        self.aborts = self._counter("aborts", "Sequences that the engine ended because their client left.", ["tier"])
        self.preemptions = self._counter("preemptions", "Sequences that lost their place for want of KV.", ["tier"])
        self.recomputed_tokens = self._counter(
            "recomputed_tokens", "Tokens that finished sequences computed again after they had lost their place.", ["tier"]
        )
        self.pauses = self._counter("pauses", "Times that finished sequences stood aside for more urgent ones.", ["tier"])
        self.drops = self._counter("drops", "Sequences that were refused before they got a place, by why.", ["tier", "reason"])
        self.slo_met = self._counter("slo_met", "Calls that met all objectives of the tier that they asked for.", ["tier"])
        self.slo_missed = self._counter("slo_missed", "Calls that missed one, by where the time went.", ["tier", "reason"])
        self.downgrades = self._counter(
            "downgrades", "Calls that were served in a less urgent tier than they asked for.", ["requested", "served", "reason"]
        )
        self.cost = self._counter("cost", "What calls cost, by the prices of the tier that served, in its currency.", ["tier"])
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of finished sequences.", ["tier"])
        self.output_tokens = self._counter("output_tokens", "Output tokens that were delivered.", ["tier"])
        self.request_log_lines = self._counter(
            "request_log_lines", "Lines of the request log; `lost`: the disk did not take them.", ["outcome"]
        )
        self.http_responses = self._counter(
            "http_responses", "HTTP answers by route and class; `aborted`: the client left first.", ["route", "status_class"]
        )

    def _add_engine(self, step_edges: tuple[float, ...]) -> None:
        self.step = self._histogram("step_seconds", "Duration of an engine step.", ["kind"], step_edges)
        self.schedule = self._histogram("schedule_seconds", "Time to decide one step.", [], buckets.SCHEDULE_EDGES_S)
        self.step_tokens = self._histogram("step_tokens", "Tokens in a step.", ["kind"], buckets.STEP_TOKEN_EDGES)
        self.computed_tokens = self._counter(
            "computed_tokens", "Tokens that went through a forward pass, recomputation included.", []
        )
        self.interrupted_steps = self._counter("interrupted_steps", "Steps that were broken off for something more urgent.", [])
        self.lost_tokens = self._counter("lost_tokens", "Prompt tokens in them, which are computed again.", [])
        self.ahead_tokens = self._counter(
            "ahead_tokens", "Tokens computed before anybody asked: pinned prompts, and beginnings of next turns.", []
        )
        self.kv_blocks = self._gauge("kv_blocks", f"KV blocks of {KV_BLOCK_TOKENS} tokens, by state.", ["level", "state"])
        self.kv_capacity = self._gauge("kv_capacity_blocks", f"All KV blocks of {KV_BLOCK_TOKENS} tokens.", ["level"])
        self.prefix_queries = self._counter(
            "prefix_cache_queried_tokens", "Prompt tokens that were looked up in the prefix cache.", []
        )
        self.prefix_hits = self._counter(
            "prefix_cache_hit_tokens", "Prompt tokens that were found there and not computed again, by level.", ["level"]
        )
        self.reserved_tokens = self._gauge(
            "reserved_kv_tokens", "Cells that are held back for a tier whose requests are likely to come.", ["tier"]
        )
        self.reserved_share = self._gauge(
            "reserved_step_share", "Share of the target step time that is held back for such a tier.", ["tier"]
        )
        self.reserved_places = self._gauge(
            "reserved_requests", "Requests of such a tier that are likely to come within five seconds.", ["tier"]
        )
        self.kv_bytes = self._gauge("kv_bytes", "Bytes of KV outside the device, by level.", ["level"])
        self.kv_capacity_bytes = self._gauge("kv_capacity_bytes", "What a level may hold; 0: it is off.", ["level"])
        self.kv_moved_runs = self._counter("kv_moved_runs", "Pieces of KV that were moved between levels.", ["way"])
        self.kv_evicted_runs = self._counter("kv_evicted_runs", "Pieces of KV that left a level for want of room.", ["level"])
        self.drafted_tokens = self._counter("spec_drafted_tokens", "Tokens that were guessed and checked.", ["source"])
        self.accepted_tokens = self._counter("spec_accepted_tokens", "Guessed tokens that were right.", ["source"])
        self.spec_gain = self._gauge(
            "spec_gain", "Tokens per second of steps with guesses over those without, lately; 0: not measured.", ["source"]
        )
        self.restarts = self._counter("engine_restarts", "How often the engine process was replaced after a crash.", [])
        self.last_step_age = self._gauge("last_step_age_seconds", "Time since the last finished step; 0 before the first.")
        self.build = Info("ultrafast_build", "Versions and model of this server.", registry=self.registry)

    def watch_last_step_age(self, read: Callable[[], float | None]) -> None:
        """Ask `read` for the age of the last step, seconds (None: there was none yet), whenever the metrics are read."""
        self.last_step_age.set_function(lambda: read() or 0.0)

    def before_read(self, fold: Callable[[], None]) -> None:
        """Call `fold`, on the reader's thread, whenever the metrics are about to be read: samples that wait get in by it."""
        self._before_read.folds.append(fold)

    def render(self) -> bytes:
        """Return everything in Prometheus' text format. Takes some milliseconds; may run on any thread."""
        return prometheus_client.generate_latest(self.registry)

    def _histogram(self, noun: str, text: str, labels: list[str], edges: Iterable[float]) -> Histogram:
        return Histogram(f"ultrafast_{noun}", text, labels, buckets=tuple(edges), registry=self.registry)

    def _counter(self, noun: str, text: str, labels: list[str]) -> Counter:
        return Counter(f"ultrafast_{noun}_total", text, labels, registry=self.registry)

    def _gauge(self, noun: str, text: str, labels: Iterable[str] = ()) -> Gauge:
        return Gauge(f"ultrafast_{noun}", text, list(labels), registry=self.registry)


class _BeforeRead(Collector):
    """Has no metric of its own: being asked for it tells that the registry is being read."""

    def __init__(self) -> None:
        self.folds: list[Callable[[], None]] = []

    def collect(self) -> Iterable[Metric]:
        for fold in self.folds:
            fold()
        return ()
