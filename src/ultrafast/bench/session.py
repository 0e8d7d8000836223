"""A whole measurement from specification to run: preflight, plan, warm-up, window, flags. What the commands call."""

from __future__ import annotations

import asyncio
import gc
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ultrafast import __version__
from ultrafast.bench.client import BenchClient
from ultrafast.bench.dialect import CHAT_PATH, Dialect
from ultrafast.bench.fingerprint import client_fingerprint
from ultrafast.bench.http1 import Address, ConnectionPool
from ultrafast.bench.metrics import summarise
from ultrafast.bench.processes import run_jobs
from ultrafast.bench.prompt_files import read_prompts
from ultrafast.bench.records import Run, RunRecord, Scenario, WarmUp
from ultrafast.bench.runner import OnProgress, OnRecord, PartialRun, Runner, RunnerSpec
from ultrafast.bench.server_metrics import counted_between, read_counters
from ultrafast.bench.target import Target, find_target
from ultrafast.bench.traces import read_trace, scale
from ultrafast.bench.trust import tls_context
from ultrafast.bench.validity import judge
from ultrafast.bench.warm_up import MAX_WARM_UP_S, WarmUpSpec, warm_up
from ultrafast.bench.worker import Job
from ultrafast.bench.workload import Session, WorkloadSpec, plan_prompts, plan_random, plan_trace, planned_duration_s

_WARM_SEED = 1 << 40
"""Added to the seed for warm-up prompts: never those that are measured."""
_MAX_WARM_CONCURRENCY = 32
_MAX_WARM_UP_SHARE = 0.25
"""Of the time limit of a run: the rest is for what is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSpec:
    """Everything that a run needs to know. Holds the key of the server: do not print it.

    Attributes:
        name: of the scenario, for reports.
        prompts_path, trace_path: at most one; else random text of `workload`'s lengths.
        speed: of a replayed trace; 2 is twice as fast.
        max_duration_s: of everything, from the first question to the server to the end of the drain.
        extra: fields added to every request body.
        ca_file: certificates to trust instead of the system's. is_insecure: trust any.
    """

    name: str
    url: str
    workload: WorkloadSpec
    model: str | None = None
    path: str = CHAT_PATH
    headers: dict[str, str] = field(default_factory=dict)
    concurrency: int | None = None
    num_warmups: int | None = None
    num_processes: int = 1
    ignores_eos: bool = True
    prompts_path: Path | None = None
    trace_path: Path | None = None
    speed: float = 1.0
    max_duration_s: float | None = None
    timeout_s: float = 600.0
    goodput_s: dict[str, float] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    ca_file: Path | None = None
    is_insecure: bool = False


class Listener:
    """Hears how a measurement goes; every method may be left as it is."""

    def on_target(self, target: Target) -> None:
        """The preflight is done."""

    def on_plan(self, sessions: Sequence[Session], duration_s: float | None) -> None:
        """The plan is made; `duration_s` is that of its schedule (None: closed loop)."""

    def on_warm_up(self, result: WarmUp) -> None:
        """The warm-up is done."""

    on_progress: OnProgress | None = None
    on_record: OnRecord | None = None
    """Called with each request that has ended, in the order of their ends; with several processes about that."""


def make_plan(spec: BenchSpec, target: Target) -> list[Session]:
    """The plan of a run. Raises what reading the files and lengths raises."""
    if spec.trace_path is not None:
        return plan_trace(spec.workload, scale(read_trace(spec.trace_path), spec.speed), target.calibration)
    if spec.prompts_path is not None:
        return plan_prompts(spec.workload, read_prompts(spec.prompts_path))
    return plan_random(spec.workload, target.calibration)


async def measure(spec: BenchSpec, listener: Listener | None = None, stop: asyncio.Event | None = None) -> Run:
    """Carry out one measurement. Setting `stop` ends it early; the run then tells what was cancelled.

    Raises:
        TargetError: the server cannot be measured as asked.
        ConfigError, TraceError, PromptFileError: the specification is at fault.
        WorkerError: a worker process died.
    """
    listener = listener or Listener()
    begin_s = time.monotonic()
    client = open_client(spec)
    try:
        target = await find_target(
            client, spec.model, Dialect(path=spec.path, ignores_eos=spec.ignores_eos), spec.extra, spec.workload.seed
        )
        listener.on_target(target)
        sessions = make_plan(spec, target)
        listener.on_plan(sessions, planned_duration_s(sessions))
        warmed = await _warm(spec, client, target)
        listener.on_warm_up(warmed)
        started_at = datetime.now(tz=UTC).isoformat(timespec="seconds")
        environment = client_fingerprint(_is_local(client.pool.address)) | target.facts
        budget_s = None if spec.max_duration_s is None else max(0.0, spec.max_duration_s - (time.monotonic() - begin_s))
        before = await read_counters(client)
        part = await _execute(spec, client, target, sessions, listener, stop, budget_s)
        counted = counted_between(before, await read_counters(client))
    finally:
        client.pool.close()
    return _finish(spec, target, sessions, warmed, part, started_at, environment, counted)


def open_client(spec: BenchSpec) -> BenchClient:
    """A client whose clock starts now."""
    pool = ConnectionPool(Address.parse(spec.url), time.perf_counter_ns, tls_context(spec.ca_file, is_insecure=spec.is_insecure))
    return BenchClient(pool, spec.path, time.perf_counter_ns(), spec.timeout_s, spec.headers)


async def _warm(spec: BenchSpec, client: BenchClient, target: Target) -> WarmUp:
    if spec.num_warmups == 0:
        return WarmUp()
    workload = spec.workload
    concurrency = spec.concurrency or min(_MAX_WARM_CONCURRENCY, max(1, round(workload.rate_per_s)))
    num_prompts = min(200, 10 * max(4, concurrency))
    own = msgspec.structs.replace(
        workload,
        seed=workload.seed + _WARM_SEED,
        text_seed=workload.words_seed + _WARM_SEED,
        num_requests=num_prompts,
        arrival="closed",
        num_turns=1,
    )
    if spec.trace_path is not None or spec.prompts_path is not None:
        own = msgspec.structs.replace(own, num_shared_tokens=0)
    limit_s = min(MAX_WARM_UP_S, (spec.max_duration_s or float("inf")) * _MAX_WARM_UP_SHARE)
    warm_spec = WarmUpSpec(concurrency=concurrency, num_requests=spec.num_warmups, max_duration_s=limit_s)
    return await warm_up(client, target, plan_random(own, target.calibration), warm_spec, spec.extra)


async def _execute(
    spec: BenchSpec,
    client: BenchClient,
    target: Target,
    sessions: Sequence[Session],
    listener: Listener,
    stop: asyncio.Event | None,
    budget_s: float | None,
) -> PartialRun:
    is_open_loop = spec.trace_path is not None or spec.workload.arrival != "closed"
    runner_spec = RunnerSpec(
        model=target.model,
        dialect=target.dialect,
        is_open_loop=is_open_loop,
        concurrency=spec.concurrency,
        budget_s=budget_s,
        extra=spec.extra,
    )
    if spec.num_processes > 1:
        jobs = _jobs(spec, runner_spec, sessions, is_told_records=listener.on_record is not None)
        return await run_jobs(jobs, listener.on_progress, stop, listener.on_record)
    # What exists now stays: the collector need not look at the plan again while stamps are taken.
    gc.collect()
    gc.freeze()
    try:
        client.origin_ns, client.peak_in_flight = client.pool.clock(), 0
        return await Runner(client, runner_spec, sessions, listener.on_progress, listener.on_record).run(stop)
    finally:
        gc.unfreeze()


def _jobs(spec: BenchSpec, runner_spec: RunnerSpec, sessions: Sequence[Session], *, is_told_records: bool) -> list[Job]:
    count = min(spec.num_processes, len(sessions), spec.concurrency or len(sessions))
    shares: list[int | None] = [None] * count
    if spec.concurrency is not None:
        shares = [spec.concurrency // count + (number < spec.concurrency % count) for number in range(count)]
    return [
        Job(
            number=number,
            url=spec.url,
            path=spec.path,
            headers=spec.headers,
            timeout_s=spec.timeout_s,
            spec=msgspec.structs.replace(runner_spec, concurrency=shares[number]),
            sessions=list(sessions[number::count]),
            ca_file=None if spec.ca_file is None else str(spec.ca_file),
            is_insecure=spec.is_insecure,
            is_told_records=is_told_records,
        )
        for number in range(count)
    ]


def _finish(
    spec: BenchSpec,
    target: Target,
    sessions: Sequence[Session],
    warmed: WarmUp,
    part: PartialRun,
    started_at: str,
    environment: dict[str, str],
    server_counted: dict[str, float],
) -> Run:
    num_planned = sum(len(session.turns) for session in sessions)
    record = RunRecord(
        run_id=uuid.uuid4().hex,
        started_at=started_at,
        client_version=__version__,
        scenario=scenario_of(spec, target, num_planned),
        window=part.window,
        environment=environment,
        warm_up=warmed,
        loop_lag=part.loop_lag,
        peak_in_flight=part.peak_in_flight,
        cpu_s=part.cpu_s,
        server_counted=server_counted,
    )
    run = Run(record, part.requests)
    record.flags = judge(run, summarise(run), num_planned)
    return run


def scenario_of(spec: BenchSpec, target: Target, num_planned: int) -> Scenario:
    """The conditions of a run."""
    workload = spec.workload
    is_open_loop = workload.arrival != "closed"
    arrival = f"replay:{spec.trace_path.name}" if spec.trace_path else workload.arrival
    return Scenario(
        name=spec.name,
        url=str(Address.parse(spec.url)),
        model=target.model,
        endpoint=spec.path,
        arrival=arrival,
        rate_per_s=workload.rate_per_s if is_open_loop and not spec.trace_path else None,
        burstiness=workload.burstiness,
        concurrency=spec.concurrency,
        shape=f"file:{spec.prompts_path.name}" if spec.prompts_path else spec.name,
        input_len="" if spec.prompts_path or spec.trace_path else workload.input_len,
        output_len="" if spec.trace_path else workload.output_len,
        shared_prefix_tokens=workload.num_shared_tokens,
        num_turns=workload.num_turns,
        tier_mix=workload.tier_mix,
        is_cache_cold=workload.is_cold and not workload.num_shared_tokens and workload.num_turns == 1 and not spec.trace_path,
        ignores_eos=target.dialect.ignores_eos,
        num_planned=num_planned,
        num_processes=spec.num_processes,
        seed=workload.seed,
        goodput=spec.goodput_s,
        metadata=spec.metadata,
    )


def _is_local(address: Address) -> bool:
    return address.host in ("localhost", "127.0.0.1", "::1")
