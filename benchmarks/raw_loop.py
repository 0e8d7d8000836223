"""Single-stream decode through scheduler, engine loop and executor, against a bare loop over libllama in the same process.

Both use one context: its weights, threads and KV pool. Each side in turn prefills the same prompt into an empty pool and decodes
the same number of tokens greedily; no IPC, no text. The rate counts from the first token to the last.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.in_process import InProcessEngine
from benchmarks.options import Options
from benchmarks.report import Benchmark, Report
from benchmarks.stats import median_interval, percentile
from ultrafast.core.request import Request, SamplingParams
from ultrafast.engine.llama import abi
from ultrafast.engine.llama.executor import LlamaExecutor
from ultrafast.engine.options import EngineOptions
from ultrafast.engine.settle import settle

PROMPT = tuple(range(1000, 1016))
GOAL_RATIO = 0.97


def run(options: Options) -> Report:
    num_tokens, num_groups = (64, 2) if options.is_quick else (128, 10)
    executor = LlamaExecutor.load(_engine_options(options), lambda _stage, _fraction: None)
    executor.warm_up(lambda _stage, _fraction: None)
    settle()  # as the engine process does after loading
    ours, bare, agreements = [], [], []
    engine = InProcessEngine(executor, _engine_options(options))
    _bare(executor, num_tokens)  # not counted, nor is the first of ours
    _generate(engine, "warm-up", num_tokens)
    for i in range(num_groups):
        first = _generate(engine, f"first-{i}", num_tokens)
        second, third = _bare(executor, num_tokens), _bare(executor, num_tokens)
        fourth = _generate(engine, f"fourth-{i}", num_tokens)
        ours.append((first[1] + fourth[1]) / 2)
        bare.append((second[1] + third[1]) / 2)
        agreements.append(first[0] == second[0] == third[0] == fourth[0])
    executor.close()
    ratio = median_interval([a / b for a, b in zip(ours, bare, strict=True)])
    report = Report(columns=("loop", "groups", "tokens/s P50", "ms/token P50"))
    for name, rates in (("ultrafast engine loop", ours), ("bare libllama loop", bare)):
        rate = percentile(rates, 50)
        report.rows.append((name, num_groups, rate, 1e3 / rate))
    report.add_goal_at_least("rate against the bare loop", ratio.median, GOAL_RATIO, str(ratio))
    report.notes.append(f"same tokens on both sides in {sum(agreements)} of {num_groups} groups")
    report.data = {"ours_tokens_per_s": ours, "bare_tokens_per_s": bare}
    return report


def _engine_options(options: Options) -> EngineOptions:
    return EngineOptions(
        str(options.model_path),
        num_threads=options.num_threads,
        kv_capacity_tokens=options.context_tokens,
        enable_prefix_cache=False,  # both sides start from an empty pool
        speculation="off",  # the bare loop has none
    )


def _generate(engine: InProcessEngine, request_id: str, num_tokens: int) -> tuple[list[int], float]:
    """Tokens, and tokens per second from the first to the last."""
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    (output,) = engine.generate([Request(request_id, PROMPT, params, arrival_s=time.monotonic())])
    return output.tokens, output.tokens_per_s


def _bare(executor: LlamaExecutor, num_tokens: int) -> tuple[list[int], float]:
    """Decode and argmax, nothing else. Uses the last sequence, which the scheduler hands out last, and leaves it empty."""
    c, context = executor.model.c, executor.model.context
    seq_id = executor.model.sizes.num_sequences - 1
    batch = c.llama_batch_init(len(PROMPT), 0, 1)
    tokens: list[int] = []
    begin_ns = 0
    _fill(batch, seq_id, 0, PROMPT)
    for i in range(num_tokens):
        code = c.llama_decode(context, batch)
        assert code == 0, f"llama_decode returned {code}"
        row = abi.ffi.buffer(c.llama_get_logits_ith(context, batch.n_tokens - 1), 4 * executor.vocab.size)
        tokens.append(int(np.frombuffer(row, dtype=np.float32).argmax()))
        begin_ns = begin_ns or time.perf_counter_ns()
        _fill(batch, seq_id, len(PROMPT) + i, (tokens[-1],))
    elapsed_s = (time.perf_counter_ns() - begin_ns) / 1e9
    c.llama_batch_free(batch)
    c.llama_memory_seq_rm(executor.model.memory, seq_id, -1, -1)
    return tokens, (num_tokens - 1) / elapsed_s


def _fill(batch: Any, seq_id: int, start: int, tokens: tuple[int, ...]) -> None:
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, start + i, 1, seq_id
        batch.logits[i] = i == len(tokens) - 1


BENCHMARK = Benchmark(
    "raw_loop",
    "single-stream decode through the engine loop, against a bare libllama loop in one process",
    lambda is_quick: 12 if is_quick else 130,
    run,
)
