"""Random lives of an engine: whatever comes in whatever order, the invariants of the harness hold and everybody ends once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.sim.harness import Simulation, make_limits, make_request, tokens_of
from tests.sim.memory_store import MemoryStore

from ultrafast.core.clock import ManualClock
from ultrafast.core.request import FinishReason
from ultrafast.core.step import StepStatus
from ultrafast.core.tiers import ServiceTier
from ultrafast.kv.level import RUN_OVERHEAD_BYTES, LevelLimits

PREFIXES = {name: tokens_of(name, 80) for name in ("system", "other")}
FAULTS = (StepStatus.OUT_OF_KV, StepStatus.INVALID, StepStatus.INTERRUPTED)


class EngineMachine(RuleBasedStateMachine):
    """Adds, aborts, faults and steps in any order; at the end all work is finished and all books agree."""

    @initialize(
        capacity=st.sampled_from([200, 130, 300]),
        num_running=st.sampled_from([4, 2, 6]),
        num_cached=st.sampled_from([3, 1]),
        can_trim=st.sampled_from([True, True, True, False]),
        step_tokens=st.sampled_from([16, 64, 7]),
        end_every=st.sampled_from([0, 7]),
        host_runs=st.sampled_from([0, 2, 40]),
        disk_runs=st.sampled_from([0, 3, 40]),
        num_paused=st.sampled_from([2, 0, 6]),
        loop=st.sampled_from([0, 5]),
        has_side=st.booleans(),
    )
    def start(
        self,
        *,
        capacity: int,
        num_running: int,
        num_cached: int,
        can_trim: bool,
        step_tokens: int,
        end_every: int,
        host_runs: int,
        disk_runs: int,
        num_paused: int,
        loop: int,
        has_side: bool,
    ) -> None:
        run_bytes = 128 * 12 + RUN_OVERHEAD_BYTES
        levels = LevelLimits(host_runs * run_bytes, disk_runs * run_bytes, bytes_per_token=12, can_trim=can_trim, ttl_s=60.0)
        self.disk = MemoryStore(ManualClock()) if disk_runs else None

        limits = make_limits(
            kv_capacity_tokens=capacity,
            max_request_tokens=300,
            max_step_tokens=max(step_tokens, num_running),
            max_num_running=num_running,
            max_num_cached=num_cached,
            max_num_paused=num_paused,
            can_trim=can_trim,
            reserve_tokens=16,
            levels=levels,
            max_side_tokens=300 if has_side and can_trim else 0,
            min_side_tokens=12,
        )
        self.sim = Simulation(limits, end_every=end_every, disk=self.disk, loop=loop)
        for num_tokens in (16, 32, 64) if has_side else ():  # else it takes some prompts until one is computed beside the steps
            self.sim.scheduler.cost.observe(0, num_tokens, 0.01 * num_tokens)
            self.sim.scheduler.cost.observe(1, 0, 0.009)
        self.sim.on_side = self._happen
        self.happenings: list[Any] = []
        self.num_added = 0
        self.sick: set[str] = set()
        self.num_faults = 0

    @rule(data=st.data(), count=st.integers(1, 4), steps=st.integers(0, 6))
    def add(self, data: st.DataObject, count: int, steps: int) -> None:
        for _ in range(count):
            self.sim.add(self._draw_request(data.draw))
        self.steps(steps)

    @rule(data=st.data(), kinds=st.lists(st.sampled_from(["add", "abort", "nothing"]), min_size=1, max_size=6))
    def while_a_side_chunk_runs(self, data: st.DataObject, kinds: list[str]) -> None:
        """Let these happen between pieces of the next side chunks."""
        for kind in kinds:
            self.happenings.append(self._draw_request(data.draw) if kind == "add" else kind)
        self.steps(6)

    def _happen(self) -> None:
        what = self.happenings.pop(0) if self.happenings else "nothing"
        if what == "abort":
            alive = self._alive()
            if len(alive) > 2:
                self.sim.abort(alive[self.num_added % len(alive)])
        elif what != "nothing":
            self.sim.add(replace(what, arrival_s=self.sim.clock()))

    def _draw_request(self, draw: Any) -> Any:
        request_id = f"r{self.num_added}"
        self.num_added += 1
        prefix = PREFIXES[draw(st.sampled_from(sorted(PREFIXES)))][: draw(st.sampled_from([80, 80, 40, 1]))]
        own = tokens_of(draw(st.sampled_from(["x", "y", request_id])), draw(st.sampled_from([10, 0, 30])))
        return make_request(
            request_id,
            prefix + own,
            draw(st.sampled_from([30, 8, 1, 60])),
            tier=draw(st.sampled_from(list(ServiceTier))),
            arrival_s=self.sim.clock(),
            salt=draw(st.sampled_from(["", "", "", "tenant"])),
            use_cache=draw(st.sampled_from([True, True, True, False])),
        )

    @precondition(lambda self: len(self._alive()) > 2)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(self._alive()))
        self.sim.abort(request_id)
        assert self.sim.finished[request_id].reason is FinishReason.ABORT

    @rule(steps=st.integers(1, 40))
    def steps(self, steps: int) -> None:
        for _ in range(steps):
            if self.sim.scheduler.has_work:
                self.sim.step()

    @precondition(lambda self: self.disk is not None)
    @rule(bytes_per_s=st.sampled_from([1e3, 1e6, 1e9]), is_damaged=st.booleans(), is_full=st.sampled_from([False, False, True]))
    def change_disk(self, bytes_per_s: float, *, is_damaged: bool, is_full: bool) -> None:
        assert self.disk is not None
        self.disk.bytes_per_s, self.disk.is_damaged, self.disk.is_full = bytes_per_s, is_damaged, is_full

    @rule(with_disk=st.booleans())
    def clear_cache(self, *, with_disk: bool) -> None:
        self.sim._take(self.sim.scheduler.clear_cache(self.sim.clock(), with_disk=with_disk))

    @precondition(lambda self: len(self._alive()) > 2)
    @rule(status=st.sampled_from(FAULTS), steps=st.integers(1, 4))
    def faulty_step(self, status: StepStatus, steps: int) -> None:
        self.sim.executor.injections.statuses.append(status)
        self.sim.may_cut_short = True
        self.num_faults += 1
        self.steps(steps)

    @precondition(lambda self: len(self._alive()) > 2)
    @rule(data=st.data(), kind=st.sampled_from(["invalid_ids", "failing_ids", "uncopyable_ids", "unmovable_ids"]))
    def faulty_request(self, data: st.DataObject, kind: str) -> None:
        request_id = data.draw(st.sampled_from(self._alive()))
        getattr(self.sim.executor.injections, kind).add(request_id)
        if kind not in ("uncopyable_ids", "unmovable_ids"):
            self.sick.add(request_id)

    @invariant()
    def only_the_sick_fail(self) -> None:
        """A fault costs at most one request; a sick request fails alone."""
        if not hasattr(self, "sim"):
            return
        failed = [finished.request_id for finished in self.sim.finished.values() if finished.reason is FinishReason.ERROR]
        bystanders = [name for name in failed if name not in self.sick and not self._could_never_run(name)]
        assert len(bystanders) <= self.num_faults

    def _could_never_run(self, request_id: str) -> bool:
        limits = self.sim.limits
        return self.sim.requests[request_id].num_prompt_tokens > min(limits.max_request_tokens - 1, limits.kv_capacity_tokens)

    def _alive(self) -> list[str]:
        return [request_id for request_id in self.sim.requests if request_id not in self.sim.finished]

    def teardown(self) -> None:
        if hasattr(self, "sim"):
            self.sim.run()
            self.sim.check_all_finished()
            self.only_the_sick_fail()


TestEngineMachine = pytest.mark.timeout(300)(EngineMachine.TestCase)
TestEngineMachine.settings = settings(
    max_examples=200, stateful_step_count=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
