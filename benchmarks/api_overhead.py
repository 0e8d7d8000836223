"""What API process and IPC add to a request and to a token at concurrency 1, with an engine whose steps are timed from inside.

    request in    first byte written by the client -> the engine has the request       (HTTP, parsing, template, tokens, IPC)
    first out     first token drawn in the engine -> its chunk read by the client      (IPC, detokenising, SSE, HTTP)
    token out     the same for every later token
    between       end of a step -> begin of the next one: what the engine loop adds to every token of a busy engine

The same engine is then used without HTTP, by the engine client in this process: that part is IPC, the rest is HTTP and serving.
The client's own wake-up is in all figures. Making tokens of a prompt is part of `request in`, although every server must do it:
how long that takes by itself is shown beside it.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import timed_engine
from benchmarks.client import Answer, Client
from benchmarks.options import Options
from benchmarks.ours import start_ours
from benchmarks.processes import cpu_s
from benchmarks.prompts import unique_chat
from benchmarks.report import Benchmark, Report
from benchmarks.stats import percentile
from benchmarks.timed_engine import Stamps, read_stamps
from ultrafast.core.events import TokenProduced
from ultrafast.core.request import Request, SamplingParams
from ultrafast.engine.client import EngineClient
from ultrafast.engine.llama.vocab import Vocab
from ultrafast.engine.options import EngineOptions
from ultrafast.serving.prompts import Conversation, PromptBuilder

STEP_S = 0.005
NUM_TOKENS = 32
PROMPT_TOKENS = 60
NUM_WARM_UPS = 5
GOAL_REQUEST_MS, GOAL_TOKEN_MS = 1.0, 0.2


@dataclass(slots=True)
class Delays:
    """Delays of one way to the engine, milliseconds; one entry per request or token."""

    request_in: list[float]
    first_out: list[float]
    token_out: list[float]
    between: list[float]
    num_left_out: int = 0

    @property
    def per_request(self) -> list[float]:
        return [a + b for a, b in zip(self.request_in, self.first_out, strict=True)]


def run(options: Options) -> Report:
    num_requests = 20 if options.is_quick else 300
    os.environ[timed_engine.STEP_VARIABLE] = str(STEP_S)
    token, prompts_ms = _look_at_prompts(options, num_requests)
    os.environ[timed_engine.TOKEN_VARIABLE] = str(token)
    http, floor_ms, cpu_ms = _over_http(options, num_requests)
    ipc = asyncio.run(_over_ipc(options, num_requests))
    return _report(http, ipc, {"GET /health/live": floor_ms, "template and tokens alone": prompts_ms}, cpu_ms)


def _report(http: Delays, ipc: Delays, others: dict[str, list[float]], cpu_ms: float) -> Report:
    report = Report(columns=("milliseconds", "P50", "P95", "P99", "of it IPC, P50", "HTTP and serving, P50"))
    for label, whole, part in (
        ("request in", http.request_in, ipc.request_in),
        ("first out", http.first_out, ipc.first_out),
        ("request, in + first out", http.per_request, ipc.per_request),
        ("token out", http.token_out, ipc.token_out),
    ):
        middle, share = percentile(whole, 50), percentile(part, 50)
        report.rows.append((label, middle, percentile(whole, 95), percentile(whole, 99), share, middle - share))
    for label, values in {"between two steps": http.between, **others}.items():
        report.rows.append((label, *(percentile(values, p) for p in (50, 95, 99)), "-", "-"))
    report.rows.append(("CPU of the API process per token", cpu_ms, "-", "-", "-", "-"))
    report.add_goal_at_most("added per request, P50 ms", percentile(http.per_request, 50), GOAL_REQUEST_MS)
    report.add_goal_at_most("delay of a token, P50 ms", percentile(http.token_out, 50), GOAL_TOKEN_MS)
    report.add_goal_at_most("added to every step, P50 ms", percentile(http.between, 50), GOAL_TOKEN_MS)
    report.notes.append(f"steps of {STEP_S * 1e3:g} ms, {NUM_TOKENS} tokens, prompts of about {PROMPT_TOKENS} tokens, unique")
    if http.num_left_out or ipc.num_left_out:
        report.notes.append(f"left out, since tokens came together: {http.num_left_out} and {ipc.num_left_out} requests")
    report.data = {"http": vars_of(http), "ipc": vars_of(ipc), "others_ms": others, "cpu_ms_per_token": cpu_ms}
    return report


def vars_of(path: Delays) -> dict[str, list[float]]:
    """Raw samples for the JSON file."""
    return {name: getattr(path, name) for name in ("request_in", "first_out", "token_out", "between")}


def _over_http(options: Options, num_requests: int) -> tuple[Delays, list[float], float]:
    stamps_path = _fresh_stamps(options, "http")
    with start_ours(options, options.log_dir / "api_overhead.log", module="benchmarks.timed_engine") as server:

        async def ask_all() -> tuple[list[Answer], list[float], float]:
            rng = random.Random(options.seed)
            bodies = [unique_chat(rng, PROMPT_TOKENS, NUM_TOKENS) for _ in range(NUM_WARM_UPS + num_requests)]
            async with Client(server.url) as client:
                floor = [await client.get("/health/live") for _ in range(50)]
                before_s = cpu_s(server.pid)
                answers = [await client.ask(body) for body in bodies]
                used_s = cpu_s(server.pid) - before_s
            floor_ms = [(answer.end_ns - answer.send_ns) / 1e6 for answer in floor if answer.is_ok and answer.end_ns]
            return answers, floor_ms, used_s * 1e3 / (len(answers) * NUM_TOKENS)

        answers, floor_ms, cpu_ms = asyncio.run(ask_all())
    failed = [answer.error for answer in answers if answer.error is not None]
    assert not failed, failed[0]
    clients = [(answer.send_ns, answer.stamps_ns) for answer in answers]
    return _delays(clients, read_stamps(stamps_path)), floor_ms, cpu_ms


async def _over_ipc(options: Options, num_requests: int) -> Delays:
    stamps_path = _fresh_stamps(options, "ipc")
    engine = EngineClient(EngineOptions(str(options.model_path)), command=timed_engine.COMMAND)
    await engine.start()
    clients: list[tuple[int, list[int]]] = []
    try:
        for i in range(NUM_WARM_UPS + num_requests):
            params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
            request = Request(f"ipc-{i}", tuple(range(i, i + PROMPT_TOKENS)), params, arrival_s=time.monotonic())
            sent_ns = time.perf_counter_ns()
            stamps_ns: list[int] = []
            async for events in engine.submit(request):
                now_ns = time.perf_counter_ns()
                stamps_ns += [now_ns for event in events if isinstance(event, TokenProduced)]
            clients.append((sent_ns, stamps_ns))
    finally:
        await engine.close()
    return _delays(clients, read_stamps(stamps_path))


def _delays(clients: Sequence[tuple[int, list[int]]], engines: Sequence[Stamps]) -> Delays:
    """Client's and engine's stamps side by side, without the warm-up and without the last token (it waits for the log entry)."""
    delays = Delays([], [], [], [])
    for (sent_ns, read_ns), engine in list(zip(clients, engines, strict=True))[NUM_WARM_UPS:]:
        if len(read_ns) != len(engine.step_end_ns):  # tokens came together: whose delay is whose?
            delays.num_left_out += 1
            continue
        out = [(read - drawn) / 1e6 for read, drawn in zip(read_ns, engine.step_end_ns, strict=True)]
        delays.request_in.append((engine.begin_ns - sent_ns) / 1e6)
        delays.first_out.append(out[0])
        delays.token_out += out[1:-1]
        delays.between += [
            (begin - end) / 1e6 for end, begin in zip(engine.step_end_ns[:-1], engine.step_begin_ns[1:], strict=True)
        ]
    return delays


def _fresh_stamps(options: Options, name: str) -> Path:
    options.log_dir.mkdir(parents=True, exist_ok=True)
    path = options.log_dir / f"stamps-{name}.jsonl"
    path.unlink(missing_ok=True)
    os.environ[timed_engine.STAMPS_VARIABLE] = str(path)
    return path


def _look_at_prompts(options: Options, num_requests: int) -> tuple[int, list[float]]:
    """A token that is text by itself, so that each becomes one chunk; and milliseconds from messages to tokens, per prompt."""
    rng = random.Random(options.seed)
    vocab = Vocab.load(str(options.model_path))
    try:
        builder = PromptBuilder(vocab)
        taken_ms = []
        for _ in range(NUM_WARM_UPS + num_requests):
            conversation = Conversation(unique_chat(rng, PROMPT_TOKENS, NUM_TOKENS)["messages"], [])
            time.sleep(STEP_S)  # caches as cold as they are in a server that waits for its next request
            begin_ns = time.perf_counter_ns()
            builder.tokens(builder.render(conversation).items)
            taken_ms.append((time.perf_counter_ns() - begin_ns) / 1e6)
        return vocab.tokenize(" water", add_special=False, parse_special=False)[0], taken_ms[NUM_WARM_UPS:]
    finally:
        vocab.close()


BENCHMARK = Benchmark(
    "api_overhead",
    "what API process and IPC add per request and per token at concurrency 1",
    lambda is_quick: 20 if is_quick else 130,
    run,
)
