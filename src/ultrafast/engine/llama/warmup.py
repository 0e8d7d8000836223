"""Run every shape once before the first request: weights paged in, graphs built, KV touched, save and restore tried.

The shapes are those a server meets: 1, 2, 4, ... decoding sequences, prefill chunks of 16, 32, ... tokens, and both in one step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ultrafast.core.request import Request, SamplingParams
from ultrafast.core.step import SequenceWork, StepPlan, StepStatus, TrimSequence
from ultrafast.engine.llama import abi
from ultrafast.engine.llama.idle_cells import measure_idle_cell_s
from ultrafast.engine.warmup_plan import WarmupPlan

if TYPE_CHECKING:
    from ultrafast.engine.llama.executor import LlamaExecutor

_REQUEST_ID = "warm-up"
_SMALLEST_CHUNK = 16
_SMALL_CHUNKS = (16, 32, 64)
_RUN_TWICE_TOKENS = 64


class StepSample(NamedTuple):
    """One measured step: `num_outputs` output rows, `num_prefill_tokens` prompt tokens, `duration_s` seconds."""

    num_outputs: int
    num_prefill_tokens: int
    duration_s: float


class Warmed(NamedTuple):
    """What the warm-up measured, for the scheduler.

    Attributes:
        samples: how long each shape took when it ran warm.
        idle_cell_s: see `EngineFacts`.
    """

    samples: list[StepSample]
    idle_cell_s: float


def warm_up(executor: LlamaExecutor, on_progress: Callable[[str, float], None], plan: WarmupPlan | None = None) -> Warmed:
    """Warm all shapes, or those of a plan. Leaves the KV cache cleared and touched, and no request begun."""
    request = Request(_REQUEST_ID, (0,), SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, max_tokens=1))
    executor.begin_request(request)
    step_tokens = executor.model.sizes.step_tokens
    max_decodes = min(executor.facts.max_num_running, executor.facts.max_step_tokens)
    shapes = _shapes(step_tokens, max_decodes) if plan is None else planned_shapes(plan, step_tokens, max_decodes)
    samples: list[StepSample] = []
    for done, (num_decodes, chunk) in enumerate(shapes):
        on_progress("warm-up", done / len(shapes))
        duration_s = min(_run(executor, num_decodes, chunk) for _ in range(_runs(num_decodes + chunk)))
        samples.append(StepSample(num_decodes + bool(chunk), chunk, duration_s))
    _save_and_restore(executor)
    idle_cell_s = measure_idle_cell_s(executor, _REQUEST_ID, partial(run_step, executor))
    executor.end_request(_REQUEST_ID)
    executor.model.c.llama_memory_clear(executor.model.memory, True)
    on_progress("warm-up", 1.0)
    return Warmed(samples, idle_cell_s)


def _runs(num_tokens: int) -> int:
    """The first run of a shape builds its graph; the second is what requests will see. Long ones are not worth a second."""
    return 2 if num_tokens <= _RUN_TWICE_TOKENS else 1


def _shapes(step_tokens: int, max_decodes: int) -> list[tuple[int, int]]:
    decodes = _doubling(1, max_decodes)
    chunks = [chunk for chunk in _doubling(_SMALLEST_CHUNK, step_tokens) if chunk <= step_tokens]
    mixed = [(1, chunks[0])] if chunks and step_tokens > chunks[0] else []
    return [(0, chunk) for chunk in chunks] + mixed + [(count, 0) for count in decodes]


def planned_shapes(plan: WarmupPlan, step_tokens: int, max_decodes: int) -> list[tuple[int, int]]:
    """The shapes of a plan as (decodes, prefill chunk), cut to what this engine has.

    The smallest chunks and a single decode are always among them: the cost model needs some of each to begin with.
    """
    chunks = {min(chunk, step_tokens) for chunk in (*plan.chunks, *_SMALL_CHUNKS)}
    decodes = {min(count, max_decodes) for count in (*plan.decodes, 1)}
    smallest = min(chunks)
    mixed = [(count, smallest) for count in sorted(decodes) if count + smallest <= step_tokens]
    return [(0, chunk) for chunk in sorted(chunks)] + mixed + [(count, 0) for count in sorted(decodes)]


def _doubling(first: int, last: int) -> list[int]:
    sizes = []
    while first < last:
        sizes.append(first)
        first *= 2
    return [*sizes, last]


def _run(executor: LlamaExecutor, num_decodes: int, chunk: int) -> float:
    work = [SequenceWork(_REQUEST_ID, i, executor.lengths[i], (0,), samples=True) for i in range(num_decodes)]
    if chunk:
        work.append(SequenceWork(_REQUEST_ID, num_decodes, executor.lengths[num_decodes], (0,) * chunk, samples=True))
    duration_s = run_step(executor, *work)
    executor.apply_kv([TrimSequence(item.seq_id, 0) for item in work])
    return duration_s


def run_step(executor: LlamaExecutor, *work: SequenceWork) -> float:
    """Run one step of the warm-up, which must succeed; what it computed stays in the pool. Returns its duration, seconds."""
    result = executor.run(StepPlan(0, work=work))
    assert result.status is StepStatus.OK, f"warm-up with {[len(item.tokens) for item in work]} tokens: {result.status}"
    return result.duration_s


def _save_and_restore(executor: LlamaExecutor) -> None:
    _fill = SequenceWork(_REQUEST_ID, 0, executor.lengths[0], (0,) * _SMALLEST_CHUNK, samples=False)
    run_step(executor, _fill)
    c, context = executor.model.c, executor.model.context
    size = c.llama_state_seq_get_size_ext(context, 0, 0)
    buffer = abi.ffi.new("uint8_t[]", size)
    written = c.llama_state_seq_get_data_ext(context, buffer, size, 0, 0)
    read = c.llama_state_seq_set_data_ext(context, buffer, written, 1, 0)
    assert written == read == size, f"saving {size} bytes of KV wrote {written} and restored {read}"
    executor.apply_kv([TrimSequence(0, 0), TrimSequence(1, 0)])
