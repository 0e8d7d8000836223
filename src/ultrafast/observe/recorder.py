"""Turns engine events into samples. Called on the API process's event loop, once per step; never on the engine thread.

A histogram costs more than everything else that happens to a token, and an engine step waits for whoever uses its cores. So
what happens is only noted as it comes, and folded into the metrics when these are read, or when many notes have gathered:

    on_report, on_delta ... --> list of notes --reading, or FOLD_* notes--> histograms, counters, gauges
        (event loop)            (GIL-atomic)      (any thread, under a lock)
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Protocol

from prometheus_client import Counter

from ultrafast.core.events import KvLevelsChanged, RequestFinished, RequestPreempted, StepFinished
from ultrafast.core.request import FinishReason
from ultrafast.core.tiers import ServiceTier
from ultrafast.observe.call import CallListener, CallRecorder, CallSeries, Note
from ultrafast.observe.kv_levels import LevelSeries
from ultrafast.observe.metrics import KV_BLOCK_TOKENS, Metrics
from ultrafast.observe.slo import MissReason, SloTracker
from ultrafast.observe.speculation import SpeculationSeries

FOLD_STEPS = 512
"""So many noted steps are folded even when nobody reads the metrics."""
FOLD_NOTES = 256
"""So many other notes; a call makes about fifteen."""


class StepEvents(Protocol):
    """What the recorder reads of a step report."""

    @property
    def preempted(self) -> Iterable[RequestPreempted]: ...
    @property
    def finished(self) -> Iterable[RequestFinished]: ...
    @property
    def stats(self) -> StepFinished | None: ...
    @property
    def levels(self) -> KvLevelsChanged | None: ...


class Recorder:
    """The only writer of the metrics. Label children are looked up once, here.

    Args:
        call_listener: is shown the samples of calls beside the metrics, so that both say the same.
    """

    def __init__(self, metrics: Metrics, call_listener: CallListener | None = None) -> None:
        self.metrics = metrics
        self._call_listener = call_listener
        self.slo = SloTracker()
        self._calls = {tier: CallSeries(metrics, tier) for tier in ServiceTier}
        self._queue = {tier: metrics.queue.labels(tier) for tier in ServiceTier}
        self._prefill = {tier: metrics.prefill.labels(tier) for tier in ServiceTier}
        self._prompt_tokens = {tier: metrics.prompt_tokens.labels(tier) for tier in ServiceTier}
        self._aborts = {tier: metrics.aborts.labels(tier) for tier in ServiceTier}
        self._preemptions = {tier: metrics.preemptions.labels(tier) for tier in ServiceTier}
        self._recomputed = {tier: metrics.recomputed_tokens.labels(tier) for tier in ServiceTier}
        self._pauses = {tier: metrics.pauses.labels(tier) for tier in ServiceTier}
        self._step = {kind: metrics.step.labels(kind) for kind in ("prefill", "decode", "mixed", "side")}
        self._prefill_step_tokens = metrics.step_tokens.labels("prefill")
        self._decode_step_tokens = metrics.step_tokens.labels("decode")
        self._kv_blocks = {state: metrics.kv_blocks.labels("device", state) for state in ("free", "running", "cached")}
        self._kv_capacity = metrics.kv_capacity.labels("device")
        self._steps: list[StepFinished] = []
        self._notes: list[Note] = []
        self._live_calls: set[CallRecorder] = set()
        self._fold_lock = threading.Lock()
        metrics.before_read(self._fold)
        self._levels = LevelSeries(metrics)
        self._speculation = SpeculationSeries(metrics)

    def begin_call(self, arrival_s: float, tier: ServiceTier) -> CallRecorder:
        """Count a call in; whoever gets the recorder must call `finish` on it exactly once."""
        call = CallRecorder(self._calls, arrival_s, tier, self._live_calls.discard, self._notes, self._call_listener)
        self._live_calls.add(call)
        return call

    def on_response(self, route: str, status_class: str) -> None:
        """Count an HTTP answer. `route` is a route's template or "unmatched", never a path that a client wrote."""
        self._notes.append((_count, (self.metrics.http_responses, route, status_class)))
        if len(self._notes) >= FOLD_NOTES:
            self._fold_notes()

    def on_objectives(self, tier: ServiceTier, missed_by: MissReason | None) -> None:
        """Count a call that was held to its objectives; None = it met them all."""
        metrics = self.metrics
        self._notes.append((_count, (metrics.slo_met, tier) if missed_by is None else (metrics.slo_missed, tier, missed_by)))

    def on_downgrade(self, requested: ServiceTier, served: ServiceTier, reason: str) -> None:
        """Count a call that another tier than the requested one served; `reason` is one of `core.events.DropReason`."""
        self._notes.append((_count, (self.metrics.downgrades, requested, served, reason)))

    def on_cost(self, tier: ServiceTier, cost: float) -> None:
        """Count what a call cost."""
        self._notes.append((self._add_cost, (tier, cost)))

    def on_report(self, report: StepEvents) -> None:
        """Take over what came of one step."""
        if report.preempted:
            self._notes += [(self._preemptions[preempted.tier].inc, ()) for preempted in report.preempted]
        if report.finished:
            self._notes += [(self._on_finished, (finished,)) for finished in report.finished]
        if report.stats is not None:
            steps = self._steps
            steps.append(report.stats)
            if len(steps) >= FOLD_STEPS:
                self._fold_steps()
        if report.levels is not None:
            self._notes.append((self._levels.on_change, (report.levels,)))
        if len(self._notes) >= FOLD_NOTES:
            self._fold_notes()

    def on_restart(self) -> None:
        """Count a replacement of the engine process."""
        self._fold_notes()
        self._levels.on_restart()
        self.metrics.restarts.inc()

    def describe_build(self, version: str, engine: str, model: str) -> None:
        """Tell what runs: version of the server, build of the engine's library, name of the model."""
        self.metrics.gen_ai.model = model
        self.metrics.build.info({"version": version, "engine": engine, "model": model})

    def _add_cost(self, tier: ServiceTier, cost: float) -> None:
        self.metrics.cost.labels(tier).inc(cost)

    def _fold(self) -> None:
        """Bring the metrics up to date."""
        self._fold_steps()
        self._fold_notes()
        self.metrics.requests_in_flight.set(len(self._live_calls))
        for call in self._live_calls.copy():  # one C call: the event loop may add and discard meanwhile
            call.fold()

    def _fold_steps(self) -> None:
        with self._fold_lock:
            # The list is never replaced: what the event loop appends meanwhile stays in it.
            steps = self._steps[:]
            del self._steps[: len(steps)]
            for stats in steps:
                self._observe_step(stats)
            if steps:
                self._set_gauges(steps[-1])

    def _fold_notes(self) -> None:
        with self._fold_lock:
            notes = self._notes[:]  # as with the steps
            del self._notes[: len(notes)]
            for do, arguments in notes:
                do(*arguments)

    def _on_finished(self, event: RequestFinished) -> None:
        if event.is_internal:
            self.metrics.ahead_tokens.inc(event.num_computed_tokens)
            return
        self._prompt_tokens[event.tier].inc(event.num_prompt_tokens)
        self._pauses[event.tier].inc(event.num_pauses)
        self._recomputed[event.tier].inc(event.num_recomputed_tokens)
        if event.drop_reason is not None:
            self.metrics.drops.labels(event.tier, event.drop_reason).inc()
        if event.reason is FinishReason.ABORT:
            self._aborts[event.tier].inc()
        if event.scheduled_s is None:
            return
        self._queue[event.tier].observe(max(0.0, event.scheduled_s - event.arrival_s))
        self.metrics.prefix_queries.inc(event.num_prompt_tokens)
        self._levels.on_hits(event)
        if event.first_token_s is not None:
            self._prefill[event.tier].observe(max(0.0, event.first_token_s - event.scheduled_s))

    def _observe_step(self, stats: StepFinished) -> None:
        if stats.num_tokens:  # else nothing ran: somebody only came or went
            self._step[_step_kind(stats)].observe(stats.duration_s)
            self.metrics.schedule.observe(stats.schedule_s)
        self.metrics.computed_tokens.inc(stats.num_tokens)
        if stats.num_lost_tokens:
            self.metrics.interrupted_steps.inc()
            self.metrics.lost_tokens.inc(stats.num_lost_tokens)
        if stats.num_prefill_tokens:
            self._prefill_step_tokens.observe(stats.num_prefill_tokens)
        if stats.num_decode_sequences:
            self._decode_step_tokens.observe(stats.num_tokens - stats.num_prefill_tokens)
        self._speculation.on_step(stats)

    def _set_gauges(self, stats: StepFinished) -> None:
        self.metrics.requests_running.set(stats.num_running)
        self.metrics.requests_waiting.set(stats.num_waiting)
        self.metrics.requests_paused.set(stats.num_paused)
        reserved = {one.tier: one for one in stats.reserved}
        for tier in ServiceTier:
            held = reserved.get(tier)
            self.metrics.reserved_tokens.labels(tier).set(held.num_kv_tokens if held else 0)
            self.metrics.reserved_share.labels(tier).set(held.step_share if held else 0)
            self.metrics.reserved_places.labels(tier).set(held.num_likely if held else 0)
        self._set_kv(stats.num_kv_tokens_running, stats.num_kv_tokens_cached, stats.num_kv_tokens_free)

    def _set_kv(self, num_running_tokens: int, num_cached_tokens: int, num_free_tokens: int) -> None:
        # Whole blocks that are used, rounded up; free is the rest, so that the three always sum to the capacity.
        capacity = (num_running_tokens + num_cached_tokens + num_free_tokens) // KV_BLOCK_TOKENS
        running = min(capacity, -(-num_running_tokens // KV_BLOCK_TOKENS))
        cached = min(capacity - running, -(-num_cached_tokens // KV_BLOCK_TOKENS))
        self._kv_blocks["running"].set(running)
        self._kv_blocks["cached"].set(cached)
        self._kv_blocks["free"].set(capacity - running - cached)
        self._kv_capacity.set(capacity)


def _count(counter: Counter, *labels: str) -> None:
    counter.labels(*labels).inc()


def _step_kind(stats: StepFinished) -> str:
    if stats.is_side:
        return "side"
    if not stats.num_prefill_tokens:
        return "decode"
    return "mixed" if stats.num_decode_sequences else "prefill"
