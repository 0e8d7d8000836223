"""An engine process without a model whose steps take a known time and which notes when each of them began and ended.

    python -m benchmarks.timed_engine --fd N        instead of `ultrafast.engine_process`: real socket, scheduler and loop
    python -m benchmarks.timed_engine serve ...     `ultrafast serve` with that engine

All stamps are CLOCK_MONOTONIC, which processes of one machine share.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ultrafast.core.request import Request
from ultrafast.core.step import KvOp, SampledToken, StepPlan, StepResult, StepStatus
from ultrafast.engine.assembly import assemble_fake
from ultrafast.engine.client import EngineClient
from ultrafast.engine.host import Parts, Progress, run_process
from ultrafast.engine.messages import Configure

COMMAND = (sys.executable, "-m", "benchmarks.timed_engine")
STEP_VARIABLE = "BENCH_STEP_S"
TOKEN_VARIABLE = "BENCH_TOKEN"
STAMPS_VARIABLE = "BENCH_STAMPS"


@dataclass(slots=True)
class Stamps:
    """One request as the engine saw it, in nanoseconds. `step_begin_ns[i]` to `step_end_ns[i]` produced output token i."""

    begin_ns: int
    step_begin_ns: list[int] = field(default_factory=list)
    step_end_ns: list[int] = field(default_factory=list)


class TimedExecutor:
    """Implements `engine.executor.Executor`: sleeps, then answers every row with the same token."""

    def __init__(self, step_s: float, token: int, stamps_path: Path) -> None:
        self._step_s = step_s
        self._token = token
        self._stamps_path = stamps_path
        self._stamps: dict[str, Stamps] = {}

    def prepare_request(self, request: Request) -> None: ...

    def begin_request(self, request: Request) -> None:
        self._stamps[request.request_id] = Stamps(time.perf_counter_ns())

    def end_request(self, request_id: str) -> None:
        with self._stamps_path.open("a") as file:
            file.write(json.dumps(asdict(self._stamps.pop(request_id))) + "\n")

    def apply_kv(self, ops: Sequence[KvOp]) -> tuple[str, ...]:
        del ops
        return ()

    def save_kv(self, seq_id: int, begin: int, end: int) -> memoryview | None:
        del seq_id, begin, end
        return None

    def load_kv(self, seq_id: int, begin: int, end: int, data: memoryview) -> bool:
        del seq_id, begin, end, data
        raise AssertionError("nothing was saved")

    def run(self, plan: StepPlan) -> StepResult:
        begin_ns = time.perf_counter_ns()
        time.sleep(self._step_s)
        sampled = tuple(SampledToken(item.request_id, self._token) for item in plan.work if item.samples)
        end_ns = time.perf_counter_ns()
        for one in sampled:
            self._stamps[one.request_id].step_begin_ns.append(begin_ns)
            self._stamps[one.request_id].step_end_ns.append(end_ns)
        return StepResult(StepStatus.OK, sampled, duration_s=(end_ns - begin_ns) / 1e9)

    def close(self) -> None: ...


def read_stamps(path: Path) -> list[Stamps]:
    """Every finished request, in the order of their ends."""
    return [Stamps(**json.loads(line)) for line in path.read_text().splitlines()]


def assemble(configure: Configure, on_progress: Progress) -> Parts:
    """In place of `engine.assembly.assemble_llama`; what it needs to know stands in the environment."""
    executor = TimedExecutor(float(os.environ[STEP_VARIABLE]), int(os.environ[TOKEN_VARIABLE]), Path(os.environ[STAMPS_VARIABLE]))
    return replace(assemble_fake(configure, on_progress), executor=executor)


def _run_api() -> None:
    from ultrafast.cli.main import main

    defaults = EngineClient.__init__.__kwdefaults__
    assert defaults is not None
    defaults["command"] = COMMAND  # the product has no switch for this, and needs none
    main()


if __name__ == "__main__":
    if "--fd" in sys.argv:
        run_process(int(sys.argv[sys.argv.index("--fd") + 1]), assemble)
    else:
        _run_api()
