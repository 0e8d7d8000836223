"""Plain greedy decoding of one sequence on an executor: the reference that every optimisation is compared with.

What counts as agreement, near-ties in mind, is `ultrafast.bench.greedy_run`'s to say.
"""

from __future__ import annotations

import numpy as np

from ultrafast.bench.greedy_run import GreedyRun
from ultrafast.core.request import Request, SamplingParams
from ultrafast.core.step import SequenceWork, StepPlan, StepStatus, TrimSequence
from ultrafast.engine.llama import abi
from ultrafast.engine.llama.executor import LlamaExecutor


def run_tokens(executor: LlamaExecutor, seq_id: int, tokens: list[int], *, chunk: int = 256) -> np.ndarray:
    """Feed tokens to a sequence; return a copy of the last logits row."""
    for begin in range(0, len(tokens), chunk):
        part = tuple(tokens[begin : begin + chunk])
        plan = StepPlan(0, work=(SequenceWork("plain", seq_id, executor.lengths[seq_id], part, samples=True),))
        executor.batch.fill(plan.work)
        result = executor.run(plan)
        assert result.status is StepStatus.OK
    # The sampler may have changed the row in place only by bias and masks, which plain greedy has none of.
    pointer = executor.model.c.llama_get_logits_ith(executor.model.context, len(part) - 1)
    return np.frombuffer(abi.ffi.buffer(pointer, 4 * executor.vocab.size), dtype=np.float32).copy()


def greedy(executor: LlamaExecutor, prompt: list[int], num_tokens: int, *, seq_id: int = 0, chunk: int = 256) -> GreedyRun[int]:
    """Continue `prompt` by the most likely tokens; the sequence keeps what the run wrote."""
    executor.begin_request(Request("plain", tuple(prompt), SamplingParams(temperature=0, max_tokens=num_tokens)))
    tokens: list[int] = []
    margins: list[float] = []
    row = run_tokens(executor, seq_id, prompt[executor.lengths[seq_id] :], chunk=chunk)
    while True:
        second, first = np.sort(np.partition(row, -2)[-2:])
        tokens.append(int(row.argmax()))
        margins.append(float(first - second))
        if len(tokens) == num_tokens:
            break
        row = run_tokens(executor, seq_id, tokens[-1:])
    executor.end_request("plain")
    return GreedyRun(tokens, margins)


def free(executor: LlamaExecutor, *seq_ids: int) -> None:
    """Empty sequences."""
    executor.apply_kv([TrimSequence(seq_id, 0) for seq_id in seq_ids])
