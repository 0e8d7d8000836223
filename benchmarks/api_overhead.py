"""What API process and IPC add to a request and to a token at concurrency 1, with an engine whose steps are timed from inside.

    request in    first byte written by the client -> the engine has the request       (HTTP, parsing, template, tokens, IPC)
    first out     first token drawn in the engine -> its chunk read by the client      (IPC, detokenising, SSE, HTTP)
    token out     the same for every later token
    between       end of a step -> begin of the next one: what the engine loop adds to every token of a busy engine

The same engine is then used in two other ways. As a library: engine loop, template and tokenizer in the process of the client;
that is what the same answer takes without any API process, and what HTTP takes beyond it is what API process and IPC add. And
through the engine client of the API process, without prompts to make and without text: that is IPC.
"""

from __future__ import annotations

import asyncio
import os
import queue
import random
import threading
import time
from collections.abc import Sequence
from contextlib import closing
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
from ultrafast.engine.loop import EngineLoop
from ultrafast.engine.messages import Configure, Shutdown, StepReport, Submit
from ultrafast.engine.options import EngineOptions
from ultrafast.serving.detokenize import Detokenizer
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
    with closing(Vocab.load(str(options.model_path))) as vocab:
        # A token that is text by itself, so that each becomes one chunk.
        os.environ[timed_engine.TOKEN_VARIABLE] = str(vocab.tokenize(" water", add_special=False, parse_special=False)[0])
        http, floor_ms, cpu_ms = _over_http(options, num_requests)
        ipc = asyncio.run(_over_ipc(options, num_requests))
        library = _as_library(options, num_requests, vocab)
    return _report(http, ipc, library, floor_ms, cpu_ms)


def _report(http: Delays, ipc: Delays, library: Delays, floor_ms: list[float], cpu_ms: float) -> Report:
    report = Report(columns=("milliseconds", "HTTP P50", "P95", "P99", "IPC P50", "as library P50", "HTTP - library"))
    added = {}
    for label, name in (
        ("request in", "request_in"),
        ("first out", "first_out"),
        ("request, in + first out", "per_request"),
        ("token out", "token_out"),
    ):
        values = getattr(http, name)
        middle, over_ipc, in_process = (percentile(getattr(way, name), 50) for way in (http, ipc, library))
        added[name] = middle - in_process
        report.rows.append((label, middle, percentile(values, 95), percentile(values, 99), over_ipc, in_process, added[name]))
    between = tuple(percentile(http.between, p) for p in (50, 95, 99))
    report.rows.append(("between two steps", *between, percentile(ipc.between, 50), percentile(library.between, 50), between[0]))
    report.rows.append(("GET /health/live", *(percentile(floor_ms, p) for p in (50, 95, 99)), "-", "-", "-"))
    report.rows.append(("CPU of the API process per token", cpu_ms, "-", "-", "-", "-", "-"))
    report.add_goal_at_most("added per request, P50 ms", added["per_request"], GOAL_REQUEST_MS)
    report.add_goal_at_most("added to a token, P50 ms", added["token_out"], GOAL_TOKEN_MS)
    report.add_goal_at_most("between two steps, P50 ms", between[0], GOAL_TOKEN_MS)
    report.notes.append(f"steps of {STEP_S * 1e3:g} ms, {NUM_TOKENS} tokens, prompts of about {PROMPT_TOKENS} tokens, unique")
    num_left_out = [way.num_left_out for way in (http, ipc, library)]
    if any(num_left_out):
        report.notes.append(f"left out, since tokens came together: {num_left_out} requests over HTTP, over IPC, as library")
    report.data = {name: vars_of(way) for name, way in (("http", http), ("ipc", ipc), ("library", library))}
    report.data |= {"health_ms": floor_ms, "cpu_ms_per_token": cpu_ms}
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


def _as_library(options: Options, num_requests: int, vocab: Vocab) -> Delays:
    """The engine loop on a thread of this process; messages become tokens, and tokens text, on the one that wants them."""
    stamps_path = _fresh_stamps(options, "library")
    builder = PromptBuilder(vocab)
    reports: queue.SimpleQueue[StepReport] = queue.SimpleQueue()
    parts = timed_engine.assemble(Configure(EngineOptions(str(options.model_path))), lambda _stage, _fraction: None)
    loop = EngineLoop(parts.scheduler, parts.executor, time.monotonic, reports.put)
    thread = threading.Thread(target=loop.run, name="engine")
    thread.start()
    rng = random.Random(options.seed)
    clients: list[tuple[int, list[int]]] = []
    try:
        for i in range(NUM_WARM_UPS + num_requests):
            conversation = Conversation(unique_chat(rng, PROMPT_TOKENS, NUM_TOKENS)["messages"], [])
            sent_ns = time.perf_counter_ns()
            prompt = tuple(builder.tokens(builder.render(conversation).items))
            params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
            loop.post(Submit(Request(f"library-{i}", prompt, params, arrival_s=time.monotonic())))
            clients.append((sent_ns, _read_text(reports, vocab.pieces)))
    finally:
        loop.post(Shutdown())
        thread.join()
    return _delays(clients, read_stamps(stamps_path))


def _read_text(reports: queue.SimpleQueue[StepReport], pieces: Sequence[bytes]) -> list[int]:
    """Read one answer; when each of its tokens was text."""
    detokenizer, stamps_ns, is_finished = Detokenizer(pieces), [], False
    while not is_finished:
        report = reports.get()
        for event in report.tokens:
            detokenizer.add(event.token)
            stamps_ns.append(time.perf_counter_ns())
        is_finished = bool(report.finished)
    return stamps_ns


BENCHMARK = Benchmark(
    "api_overhead",
    "what API process and IPC add per request and per token at concurrency 1",
    lambda is_quick: 30 if is_quick else 160,
    run,
)
