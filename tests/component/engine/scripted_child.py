"""A child process for client tests: the real sockets, threads and loop around an engine that does what a script says.

The script is JSON in the environment variable SCRIPTED_CHILD; see `Script`. Run by path, never imported by the product.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from ultrafast.core.errors import ConfigError, InvalidRequestError, ModelFileError
from ultrafast.core.events import Event, RequestFinished, RequestScheduled, StepFinished, TokenProduced
from ultrafast.core.request import FinishReason, Request
from ultrafast.core.step import KvMoved, KvOp, SampledToken, SequenceWork, StepPlan, StepResult, StepStatus
from ultrafast.engine.assembly import fake_facts
from ultrafast.engine.host import Parts, Progress, run_process
from ultrafast.engine.messages import Configure
from ultrafast.engine.reports import ended
from ultrafast.sched.coming import Coming

POISON = 666
"""A prompt that starts with this token kills the process; its second token says at which output index."""


class Script(msgspec.Struct):
    step_s: float = 0.0
    load: str = "ok"  # ok | slow (for ever) | fail | setting | crash
    fail_loads_after: int | None = None  # loads after so many crash; counted in `counter_file`
    counter_file: str = ""
    stuck_file: str = ""  # steps hang while it exists ...
    stuck_from: int = 0  # ... once some request has so many output tokens
    max_num_running: int = 1000
    min_num_requests: int = 0  # no step before so many are there: then they run in lockstep


def expected_token(request: Request, index: int) -> int:
    return (sum(request.prompt_tokens) * 31 + index * 7) % 50_000


def expected_text(request: Request) -> list[int]:
    return [expected_token(request, index) for index in range(request.params.max_tokens)]


class PlainScheduler:
    """Everybody runs, first come first served."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.requests: dict[str, Request] = {}
        self._num_output: dict[str, int] = {}
        self._scheduled: set[str] = set()
        self._step = 0

    @property
    def has_work(self) -> bool:
        return bool(self.requests)

    def answer(self, request: Request, now: float, coming: Coming) -> RequestFinished:
        return ended(request, FinishReason.ABORT, now)

    def add(self, request: Request, now: float, coming: Coming) -> list[Event]:
        self.requests[request.request_id] = request
        self._num_output[request.request_id] = len(request.output_tokens)
        return []

    def abort(self, request_id: str, now: float) -> list[Event]:
        return [self._finish(request_id, FinishReason.ABORT, now)] if request_id in self.requests else []

    def plan(self, now: float) -> StepPlan:
        if len(self.requests) < self._script.min_num_requests:
            time.sleep(0.001)
            return StepPlan(self._step)
        self._step += 1
        ids = list(self.requests)[: self._script.max_num_running]
        work = tuple(SequenceWork(i, 0, 0, (0,), samples=True, output_index=self._num_output[i]) for i in ids)
        return StepPlan(self._step, (), work)

    is_waiting_for_kv = False

    def kv_moved(self, results: Sequence[KvMoved], now: float) -> list[Event]:
        return []

    def clear_cache(self, now: float, *, with_disk: bool) -> list[Event]:
        return []

    def copies_failed(self, request_ids: Iterable[str], now: float) -> None:
        raise AssertionError

    def complete(self, plan: StepPlan, result: StepResult, now: float) -> list[Event]:
        events: list[Event] = []
        for drawn in result.sampled:
            if drawn.request_id not in self._scheduled:
                self._scheduled.add(drawn.request_id)
                events.append(RequestScheduled(drawn.request_id, now, 0))
            events.append(TokenProduced(drawn.request_id, drawn.token))
            self._num_output[drawn.request_id] += 1
            if self._num_output[drawn.request_id] == self.requests[drawn.request_id].params.max_tokens:
                events.append(self._finish(drawn.request_id, FinishReason.LENGTH, now))
        num = len(plan.work)
        return [*events, StepFinished(plan.step, now, result.duration_s, 0.0, num, 0, num, 0, num, 0, 0, 0, 0)]

    def _finish(self, request_id: str, reason: FinishReason, now: float) -> RequestFinished:
        request = self.requests.pop(request_id)
        self._scheduled.discard(request_id)
        return RequestFinished(
            request_id,
            reason,
            request.tier,
            request.num_prompt_tokens,
            num_cached_tokens=0,
            num_computed_tokens=0,
            num_output_tokens=self._num_output.pop(request_id),
            arrival_s=request.arrival_s,
            scheduled_s=now,
            first_token_s=now,
            finished_s=now,
        )


class ScriptedExecutor:
    def __init__(self, script: Script) -> None:
        self._script = script
        self._requests: dict[str, Request] = {}

    def prepare_request(self, request: Request) -> None: ...

    def begin_request(self, request: Request) -> None:
        if request.prompt_tokens[0] < 0:
            raise InvalidRequestError("a negative token id")
        expected = expected_text(request)[: len(request.output_tokens)]
        assert list(request.output_tokens) == expected, "continued with other tokens than were produced"
        self._requests[request.request_id] = request

    def end_request(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    def apply_kv(self, ops: Sequence[KvOp]) -> tuple[str, ...]:
        return ()

    def run(self, plan: StepPlan) -> StepResult:
        time.sleep(self._script.step_s)
        self._wait_while_stuck(max(item.output_index for item in plan.work))
        drawn = []
        for item in plan.work:
            request = self._requests[item.request_id]
            if request.prompt_tokens[0] == POISON and item.output_index >= request.prompt_tokens[1]:
                os.abort()
            drawn.append(SampledToken(item.request_id, expected_token(request, item.output_index)))
        return StepResult(StepStatus.OK, tuple(drawn), (), self._script.step_s)

    def _wait_while_stuck(self, output_index: int) -> None:
        script = self._script
        while script.stuck_file and output_index >= script.stuck_from and Path(script.stuck_file).exists():
            time.sleep(0.005)

    def close(self) -> None: ...


def assemble(configure: Configure, on_progress: Progress) -> Parts:
    script = msgspec.json.decode(os.environ["SCRIPTED_CHILD"], type=Script)
    on_progress("load", 0.5)
    if script.load == "fail" or not configure.options.model_path:
        raise ModelFileError("the model file is cut", hint="fetch it again")
    if script.load == "setting":
        raise ConfigError("the pool is too large", code="context_failed", param="engine.kv_capacity_tokens", hint="lower it")
    while script.load == "slow":
        time.sleep(1)
    if script.load == "crash" or _is_load_too_many(script):
        os.abort()
    facts = replace(fake_facts(configure.options), build="scripted", vocab_size=50_000)
    return Parts(ScriptedExecutor(script), PlainScheduler(script), facts)


def _is_load_too_many(script: Script) -> bool:
    if script.fail_loads_after is None:
        return False
    with Path(script.counter_file).open("a+") as file:
        file.write(".")
        return file.tell() > script.fail_loads_after


if __name__ == "__main__":
    assert sys.argv[1] == "--fd"
    run_process(int(sys.argv[2]), assemble)
