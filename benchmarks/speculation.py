"""Decoding with speculation against without, in turns on one engine: the request decides, everything else is shared.

Copies: the prompt holds a page of text several times and stops in the middle of it, the output goes on with the page; greedy.
Free text: chats that have nothing to copy, sampled with a seed, by 1, 4 and 8 streams at once. Rates count tokens from the moment
at which every stream has its first one. With `--draft-model`, that model guesses too.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from benchmarks.in_process import InProcessEngine, Output
from benchmarks.interleave import group_ratio
from benchmarks.options import Options
from benchmarks.report import Benchmark, Report
from benchmarks.stats import median_interval, percentile
from ultrafast.core.request import Request, SamplingParams
from ultrafast.engine.llama.executor import LlamaExecutor
from ultrafast.engine.options import EngineOptions

GOAL_COPY = 1.5
GOAL_ELSEWHERE = 0.95
PAGE = """Invoice 2041. Customer: Harbour Tools Ltd, 17 Quay Street. Ordered on 3 March, shipped on 9 March.
Item 1: steel hammer, 12 pieces at 18.50. Item 2: oak ladder, 3 pieces at 74.00. Item 3: copper wire, 40 metres at 1.25.
Item 4: box of brass screws, 25 boxes at 6.80. Item 5: canvas sheet, 8 pieces at 22.10. Payment within 30 days.
"""
TOPICS = (
    "a lighthouse",
    "the first train",
    "a lost letter",
    "rain in summer",
    "an old clock",
    "two brothers",
    "the sea",
    "bread",
)
STREAMS = (1, 4, 8)

_numbers = itertools.count()


def run(options: Options) -> Report:
    num_tokens, num_groups = (48, 2) if options.is_quick else (128, 12)
    engine_options = EngineOptions(
        str(options.model_path),
        draft_model_path=str(options.draft_model_path) if options.draft_model_path else None,
        num_threads=options.num_threads,
        kv_capacity_tokens=options.context_tokens,
        enable_prefix_cache=False,  # each turn starts from an empty pool
    )
    executor = LlamaExecutor.load(engine_options, lambda _stage, _fraction: None)
    samples = executor.warm_up(lambda _stage, _fraction: None)
    report = Report(columns=("output", "streams", "groups", "tokens/s without", "tokens/s with", "drafted", "accepted"))
    engine = InProcessEngine(executor, engine_options)
    for sample in samples:
        if not sample.num_prefill_tokens:
            engine.scheduler.step_times.observe(sample.num_outputs, sample.duration_s)
    engine.scheduler.observe_draft_passes(executor.warm_up_draft())
    _compare(report, engine, "copies", [_copy_prompt(executor)], num_tokens, num_groups, GOAL_COPY)
    for count in STREAMS:
        prompts = [_free_prompt(executor, topic) for topic in TOPICS[:count]]
        _compare(report, engine, "free text", prompts, num_tokens, num_groups, GOAL_ELSEWHERE)
    executor.close()
    return report


def _compare(
    report: Report,
    engine: InProcessEngine,
    kind: str,
    prompts: Sequence[tuple[int, ...]],
    num_tokens: int,
    num_groups: int,
    goal: float,
) -> None:
    is_copy = kind == "copies"
    rates: dict[bool, list[float]] = {True: [], False: []}
    ratios, num_same = [], 0
    before = engine.num_drafted, engine.num_accepted
    for group in range(num_groups):
        turns: dict[bool, list[float]] = {True: [], False: []}
        texts = []
        for may_speculate in (True, False, False, True):
            outputs = engine.generate([_request(p, num_tokens, may_speculate, is_copy, group) for p in prompts])
            turns[may_speculate].append(_rate(outputs))
            texts.append([output.tokens for output in outputs])
        num_same += texts[0] == texts[1]
        ratios.append(group_ratio(turns[True], turns[False]))
        for key, values in turns.items():
            rates[key] += values
    counts = engine.num_drafted - before[0], engine.num_accepted - before[1]
    report.rows.append(
        (kind, len(prompts), num_groups, percentile(rates[False], 50), percentile(rates[True], 50), counts[0], counts[1])
    )
    interval = median_interval(ratios)
    report.add_goal_at_least(f"{kind}, {len(prompts)} stream(s), rate with over without", interval.median, goal, str(interval))
    report.notes.append(f"{kind}, {len(prompts)} stream(s): same tokens with and without in {num_same} of {num_groups} groups")
    report.data[f"{kind}-{len(prompts)}"] = {"with": rates[True], "without": rates[False], "ratios": ratios}


def _request(prompt: tuple[int, ...], num_tokens: int, may_speculate: bool, is_copy: bool, seed: int) -> Request:
    temperature = 0.0 if is_copy else 0.8
    params = SamplingParams(temperature=temperature, top_k=40, seed=seed, max_tokens=num_tokens, ignore_eos=True)
    return Request(f"r{next(_numbers)}", prompt, params, arrival_s=time.monotonic(), may_speculate=may_speculate)


def _rate(outputs: Sequence[Output]) -> float:
    """Tokens per second of all streams after the last of them has started."""
    begin_ns = max(output.stamps_ns[0] for output in outputs)
    end_ns = max(output.stamps_ns[-1] for output in outputs)
    num_tokens = sum(stamp > begin_ns for output in outputs for stamp in output.stamps_ns)
    return num_tokens / ((end_ns - begin_ns) / 1e9)


def _copy_prompt(executor: LlamaExecutor) -> tuple[int, ...]:
    return tuple(executor.vocab.tokenize(3 * PAGE + PAGE[:40], add_special=True, parse_special=False))


def _free_prompt(executor: LlamaExecutor, topic: str) -> tuple[int, ...]:
    text = f"<|im_start|>user\nWrite a long story about {topic}.<|im_end|>\n<|im_start|>assistant\n"
    return tuple(executor.vocab.tokenize(text, add_special=True, parse_special=True))


BENCHMARK = Benchmark(
    "speculation",
    "decoding with speculation against without: copied text, and free text by 1, 4 and 8 streams",
    lambda is_quick: 60 if is_quick else 600,
    run,
)
