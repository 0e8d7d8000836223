"""The engine loop turned by hand on the real model: tests look between the steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.integration.engine.greedy import free

from ultrafast.core.events import Event, RequestFinished, StepFinished, TokenProduced
from ultrafast.core.request import Request, SamplingParams
from ultrafast.core.step import StepPlan
from ultrafast.engine.assembly import make_scheduler
from ultrafast.engine.kvstore.carrier import KvCarrier
from ultrafast.engine.kvstore.disk import DiskStore
from ultrafast.engine.kvstore.model_key import model_key
from ultrafast.engine.kvstore.setup import open_levels
from ultrafast.engine.llama.executor import LlamaExecutor
from ultrafast.engine.options import EngineOptions
from ultrafast.sched.scheduler import Scheduler


def options_for(path: Path, **changes: object) -> EngineOptions:
    values = {"max_num_running": 4, "max_num_cached": 4, "num_threads": 1, "threadpool_poll": 0, "kv_capacity_tokens": 1024}
    return EngineOptions(str(path), **{**values, "kv_host_bytes": 64 << 20, **changes})  # type: ignore[arg-type]


class Engine:
    """Scheduler, carrier and executor, turned by hand as the loop turns them. The executor is shared and left empty.

    Args:
        facts: what the scheduler shall believe instead of the executor's facts, for example a smaller pool.

    Attributes:
        steps: one event for each step that ran. on_side: called between two operations of a side chunk.
    """

    def __init__(self, executor: LlamaExecutor, options: EngineOptions, **facts: int) -> None:
        self.executor = executor
        limits = replace(executor.facts, **facts)
        levels = open_levels(options, limits, model_key(options, executor.facts), 1 << 30)
        self.disk: DiskStore | None = levels.disk
        self.scheduler: Scheduler = make_scheduler(limits, options, levels.limits)
        if self.disk is not None:
            self.scheduler.adopt(levels.found, time.monotonic())
        self.carrier = KvCarrier(executor, time.monotonic, self.disk)
        self.output: dict[str, list[int]] = {}
        self.finished: dict[str, RequestFinished] = {}
        self.steps: list[StepFinished] = []
        self.on_side: Callable[[], None] = lambda: None
        self._resume_s = 0.0

    def run(self, *requests: Request) -> None:
        self.add(*requests)
        while self.turn():
            pass

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.executor.begin_request(request)
            self._take(self.scheduler.add(request, time.monotonic()))

    def turn(self) -> bool:
        """One turn of the loop; False when there is nothing left to do."""
        if not (self.scheduler.has_work or self.scheduler.is_waiting_for_kv):
            return False
        self._turn()
        return True

    def _turn(self) -> StepPlan:
        plan = self.scheduler.plan(time.monotonic())
        self._resume_s = plan.resume_s
        failed = self.carrier.apply(plan.kv_ops)
        self._take(self.scheduler.kv_moved(self.carrier.poll(), time.monotonic()))
        if failed:
            self.scheduler.copies_failed(failed, time.monotonic())
        elif plan.work:
            self._take(self.scheduler.complete(plan, self.executor.run(plan), time.monotonic()))
        elif plan.side is not None:
            self.scheduler.side_begun(plan.side, time.monotonic())
            result = self.executor.run_side(plan.side, self._take_turns)
            self._take(self.scheduler.side_finished(plan.side, result, time.monotonic()))
        elif self.scheduler.is_waiting_for_kv:
            time.sleep(0.001)
        return plan

    def _take_turns(self) -> bool:
        """In the midst of a side chunk."""
        self.on_side()
        if time.monotonic() < self._resume_s:
            return True
        while self.scheduler.is_side_wanted and self._turn().work:
            pass
        return self.scheduler.is_side_wanted

    def ask(self, name: str, prompt: list[int], num_tokens: int = 12, **params: object) -> RequestFinished:
        sampling = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, **params)  # type: ignore[arg-type]
        self.run(Request(name, tuple(prompt), sampling, arrival_s=time.monotonic()))
        return self.finished[name]

    def evict(self) -> None:
        """Take everything off the device."""
        while self.scheduler._state.ledger.evict_one():
            pass
        self.run()

    def close(self) -> None:
        free(self.executor, *range(len(self.executor.lengths)))
        if self.disk is not None:
            self.disk.close()

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, TokenProduced):
                self.output.setdefault(event.request_id, []).append(event.token)
            elif isinstance(event, StepFinished):
                self.steps.append(event)
            elif isinstance(event, RequestFinished):
                self.finished[event.request_id] = event
                self.executor.end_request(event.request_id)
