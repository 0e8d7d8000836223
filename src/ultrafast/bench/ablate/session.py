"""Carries out an ablation: servers up, tokenizer calibrated, naive pipeline timed, then all pipelines in turn, over and over."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from ultrafast.bench.ablate.conversations import Workload, plan
from ultrafast.bench.ablate.pipelines import Pipeline, order_of
from ultrafast.bench.ablate.records import Ablation, AblationRun, AblationSpec
from ultrafast.bench.client import BenchClient, StreamReader
from ultrafast.bench.dialect import CHAT_PATH, Dialect
from ultrafast.bench.fingerprint import client_fingerprint
from ultrafast.bench.http1 import Address, ConnectionPool
from ultrafast.bench.own_server import OwnServer, ReadyLine, start_server
from ultrafast.bench.runner import PartialRun, Runner, RunnerSpec
from ultrafast.bench.target import TargetError, fetch, find_target
from ultrafast.bench.whole_answer import WholeAnswerReader
from ultrafast.bench.words import Calibration

_EXTRA = {"temperature": 0}
"""Greedy: all pipelines have the same text to write."""
_NUM_WARM_CONVERSATIONS = 4


class Listener:
    """Hears how an ablation goes; every method may be left as it is."""

    def on_server(self, num_started: int) -> None:
        """Another server is up and warm."""

    def on_estimate(self, duration_s: float) -> None:
        """The naive pipeline was timed: the rounds take about so long if no optimisation helps."""

    def on_run(self, pipeline: Pipeline, workload: Workload, num_done: int) -> None:
        """A run begins; `num_done` are finished."""

    def on_round(self, num_done: int) -> None:
        """A round is finished."""


async def ablate(spec: AblationSpec, listener: Listener | None = None) -> Ablation:
    """Measure everything. Servers that were started are stopped, whatever happens.

    Raises:
        ServerStartError: a pipeline's server does not start.
        TargetError: a server does not answer, or the naive pipeline fails.
    """
    return await _Session(spec, listener or Listener()).run()


class _Session:
    """One ablation."""

    def __init__(self, spec: AblationSpec, listener: Listener) -> None:
        self._spec = spec
        self._listener = listener
        self._servers: dict[str, OwnServer] = {}
        self._num_started = 0
        self._num_plans = 0
        self._calibration = Calibration()
        self._runs: list[AblationRun] = []
        self._environment: dict[str, str] = {}
        self._has_flash: dict[str, bool] = {}

    async def run(self) -> Ablation:
        start_s, started_at = time.monotonic(), datetime.now(tz=UTC).isoformat(timespec="seconds")
        spec, num_rounds = self._spec, 0
        try:
            await self._prepare()
            for number in range(spec.num_rounds):
                if number and spec.max_duration_s is not None and time.monotonic() - start_s > spec.max_duration_s:
                    break
                for pipeline in order_of(spec.pipelines, number):
                    await self._serve_round(pipeline, number)
                num_rounds = number + 1
                self._listener.on_round(num_rounds)
        finally:
            for server in self._servers.values():
                await server.stop()
        return Ablation(
            spec, self._runs, num_rounds, started_at, self._environment, time.monotonic() - start_s, self._attention_flags()
        )

    # -- servers

    async def _prepare(self) -> None:
        naive = self._spec.pipelines[0]
        async with self._server_of(naive) as server:
            client = self._client(server, is_streamed=True)
            target = await find_target(client, server.ready.model, Dialect(), _EXTRA, self._spec.seed)
            client.pool.close()
            self._calibration = target.calibration
            self._environment = client_fingerprint(is_local=True) | target.facts | _facts(server.ready)
            await self._estimate(naive, server)
        if not self._spec.is_restarting:
            for pipeline in self._spec.pipelines:
                async with self._server_of(pipeline):
                    pass

    @asynccontextmanager
    async def _server_of(self, pipeline: Pipeline) -> AsyncIterator[OwnServer]:
        """A warm server with the settings of a pipeline; it stays up for the next one unless servers are restarted."""
        key = str(pipeline.settings)
        if key not in self._servers:
            server = await start_server(self._spec.config_file, self._spec.settings | pipeline.settings, os.environ)
            self._servers[key] = server
            self._has_flash[pipeline.name] = server.ready.flash_attention
            await self._warm(pipeline, server)
            self._num_started += 1
            self._listener.on_server(self._num_started)
        yield self._servers[key]
        if self._spec.is_restarting:
            await self._servers.pop(key).stop()

    async def _warm(self, pipeline: Pipeline, server: OwnServer) -> None:
        """A few short conversations, as many at once as the load will be, with texts of their own; not measured."""
        widest = max(self._spec.workloads, key=lambda workload: workload.num_clients)
        num_clients = min(_NUM_WARM_CONVERSATIONS, widest.num_clients)
        small = Workload(
            name="warm-up",
            num_clients=num_clients,
            num_conversations=num_clients,
            num_turns=min(2, widest.num_turns),
            num_system=16,
            num_user=8,
            num_output=4,
        )
        part = await self._send(pipeline, server, small, 0)
        if failed := [record.failure for record in part.requests if record.failure is not None]:
            raise TargetError(f"A request to the pipeline {pipeline.name} failed: {failed[0].message}")

    async def _estimate(self, naive: Pipeline, server: OwnServer) -> None:
        """Time one conversation of each workload. The time of the servers' starts is not in it."""
        total_s = 0.0
        for workload in self._spec.workloads:
            one = replace(workload, num_clients=1, num_conversations=1)
            begin_s = time.monotonic()
            await self._send(naive, server, one, 0)
            total_s += (time.monotonic() - begin_s) * workload.num_conversations
        self._listener.on_estimate(total_s * len(self._spec.pipelines) * self._spec.num_rounds)

    # -- runs

    async def _serve_round(self, pipeline: Pipeline, number: int) -> None:
        async with self._server_of(pipeline) as server:
            for workload in self._spec.workloads:
                self._listener.on_run(pipeline, workload, len(self._runs))
                await self._clear_cache(server)
                part = await self._send(pipeline, server, workload, number)
                self._runs.append(AblationRun(pipeline.name, workload.name, number, part.requests, part.loop_lag))

    async def _send(self, pipeline: Pipeline, server: OwnServer, workload: Workload, number: int) -> PartialRun:
        self._num_plans += 1  # every plan has words of its own
        sessions = plan(workload, self._calibration, seed=self._spec.seed, round_number=number, nonce=self._num_plans)
        client = self._client(server, is_streamed=pipeline.is_streamed)
        runner_spec = RunnerSpec(
            model=server.ready.model,
            # Every optional field that asks for a stream goes with the stream.
            dialect=Dialect(has_usage=pipeline.is_streamed),
            is_open_loop=False,
            concurrency=workload.num_clients,
            extra=_EXTRA | {"stream": pipeline.is_streamed},
        )
        try:
            return await Runner(client, runner_spec, sessions).run()
        finally:
            client.pool.close()

    def _client(self, server: OwnServer, *, is_streamed: bool) -> BenchClient:
        pool = ConnectionPool(Address.parse(server.ready.url), time.perf_counter_ns)
        reader = StreamReader if is_streamed else WholeAnswerReader
        origin_ns, headers = time.perf_counter_ns(), self._spec.headers
        return BenchClient(pool, CHAT_PATH, origin_ns, self._spec.timeout_s, headers, reader_class=reader)

    async def _clear_cache(self, server: OwnServer) -> None:
        """What an earlier run left would only be in the way: every run has new texts."""
        pool = ConnectionPool(Address.parse(server.ready.url), time.perf_counter_ns)
        try:
            status, _, _ = await fetch(pool, "/admin/cache/clear", self._spec.headers, b"{}")
        finally:
            pool.close()
        assert status == 200, f"clearing the cache answered {status}"

    def _attention_flags(self) -> list[str]:
        """What the servers really have, against what they were asked for."""
        wanted = {pipeline.name: pipeline.settings["engine.flash_attention"] for pipeline in self._spec.pipelines}
        return [
            f"{name}: flash attention is {'on' if has else 'off'}, against its setting"
            for name, has in self._has_flash.items()
            if has != wanted[name]
        ]


def _facts(ready: ReadyLine) -> dict[str, str]:
    return {f"server.{name}": str(value) for name, value in msgspec.structs.asdict(ready).items() if name != "url"}
