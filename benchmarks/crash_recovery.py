"""kill -9 of the engine process under eight greedy streams: does every stream go on, when, and with the same text?

The same eight requests run three times: undisturbed, undisturbed again (the control), and with the engine killed while all
of them decode. Prefix caching is off, so that all three runs compute the same.

How requests happen to be batched changes rounding, so two greedy runs may part where tokens are almost equally likely. A text
therefore counts as right when it is the same, or when it parts first in favour of a token that was less than NEAR_TIE behind the
best one in the undisturbed run.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.client import Answer, Client
from benchmarks.options import Options
from benchmarks.ours import engine_pid, start_ours
from benchmarks.prompts import unique_chat
from benchmarks.report import Benchmark, Report

NUM_STREAMS = 8
CHUNKS_BEFORE_KILL = 8
NEAR_TIE = 1.5  # natural-log probability
_POLL_S = 0.005


def run(options: Options) -> Report:
    rng = random.Random(options.seed)
    num_tokens = 64 if options.is_quick else 128
    bodies = [unique_chat(rng, 60, num_tokens, logprobs=True, top_logprobs=5) for _ in range(NUM_STREAMS)]
    log_path = options.log_dir / "crash_recovery.log"
    with start_ours(options, log_path, settings=("engine.enable_prefix_cache=false",)) as server:
        plain = asyncio.run(_all_at_once(server.url, bodies))
        control = asyncio.run(_all_at_once(server.url, bodies))
        kill_ns, crashed = asyncio.run(_with_crash(server.url, bodies, lambda: engine_pid(server)))
        after = asyncio.run(_all_at_once(server.url, bodies[:1]))[0]
    return _report(plain, control, crashed, kill_ns, after, num_tokens)


async def _all_at_once(url: str, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
    async with Client(url) as client:
        return list(await asyncio.gather(*(client.ask(body) for body in bodies)))


async def _with_crash(
    url: str, bodies: Sequence[dict[str, Any]], find_engine: Callable[[], int | None]
) -> tuple[int, list[Answer]]:
    """Kill the engine once every stream has some chunks; return when, and the answers."""
    answers: list[Answer] = []
    async with Client(url) as client, asyncio.TaskGroup() as group:
        tasks = [group.create_task(client.ask(body, on_start=answers.append)) for body in bodies]
        while len(answers) < len(bodies) or min(len(answer.stamps_ns) for answer in answers) < CHUNKS_BEFORE_KILL:
            assert not any(task.done() for task in tasks), "a stream ended before the engine could be killed"
            await asyncio.sleep(_POLL_S)
        pid = find_engine()
        assert pid is not None, "the server has no engine process"
        os.kill(pid, signal.SIGKILL)
        kill_ns = time.perf_counter_ns()
    return kill_ns, [task.result() for task in tasks]


def _report(
    plain: list[Answer], control: list[Answer], crashed: list[Answer], kill_ns: int, after: Answer, num_tokens: int
) -> Report:
    report = Report(columns=("stream", "chunks before", "continues after s", "tokens", "text", "control"))
    resumed_s = [_resumed_s(answer, kill_ns) for answer in crashed]
    verdicts = [_verdict(a, b) for a, b in zip(plain, crashed, strict=True)]
    controls = [_verdict(a, b) for a, b in zip(plain, control, strict=True)]
    for i, answer in enumerate(crashed):
        before = sum(stamp < kill_ns for stamp in answer.stamps_ns)
        report.rows.append((i, before, resumed_s[i], answer.num_tokens, verdicts[i][1], controls[i][1]))
    num_whole = sum(answer.is_ok and answer.num_tokens == num_tokens for answer in crashed)
    num_right = sum(is_right for is_right, _ in verdicts)
    report.add_goal_at_least("streams that finished whole", num_whole, NUM_STREAMS, f"{num_whole} of {NUM_STREAMS}")
    report.add_goal_at_least("streams with the right text", num_right, NUM_STREAMS, f"{num_right} of {NUM_STREAMS}")
    report.notes.append(f"first stream continues after {min(resumed_s):.2f} s, the last after {max(resumed_s):.2f} s")
    same, same_control = (sum(text == "same" for _, text in found) for found in (verdicts, controls))
    report.notes.append(f"identical texts: {same} of {NUM_STREAMS}; without a crash {same_control} of {NUM_STREAMS}")
    report.goals.append(("a request afterwards", after.error or "ok", "ok", after.is_ok))
    texts = [[a.text, b.text, c.text] for a, b, c in zip(plain, control, crashed, strict=True)]
    report.data = {"resumed_s": resumed_s, "texts": texts}
    return report


def _resumed_s(answer: Answer, kill_ns: int) -> float:
    """From the kill to the chunk that ends the longest silence after it; what was under way at the kill does not count."""
    pairs = [(b - a, b) for a, b in zip(answer.stamps_ns, answer.stamps_ns[1:], strict=False) if b > kill_ns]
    return (max(pairs)[1] - kill_ns) / 1e9 if pairs else float("nan")


def _verdict(expected: Answer, seen: Answer) -> tuple[bool, str]:
    """Whether the text counts as right, and why."""
    error = expected.error or seen.error
    if error is not None:
        return False, error
    pairs = zip(expected.logprobs, seen.logprobs, strict=False)
    parting = next((i for i, (a, b) in enumerate(pairs) if a["token"] != b["token"]), None)
    if parting is None:
        is_same = expected.text == seen.text and len(expected.logprobs) == len(seen.logprobs)
        return is_same, "same" if is_same else "same tokens, but not the same text"
    top = expected.logprobs[parting]["top_logprobs"]
    behind = {one["token"]: top[0]["logprob"] - one["logprob"] for one in top}  # names of people come three and four in a tie
    lead = behind.get(seen.logprobs[parting]["token"], math.inf)
    is_right = lead < NEAR_TIE
    return is_right, f"parts at token {parting}, {'near-tie' if is_right else 'WRONG'} ({lead:.3f})"


BENCHMARK = Benchmark(
    "crash_recovery",
    "kill -9 of the engine under eight streams: text and pause",
    lambda is_quick: 30 if is_quick else 60,
    run,
)
