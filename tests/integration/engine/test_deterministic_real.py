"""Deterministic requests on the bundled model: the same floats alone, beside seven others, displaced, and continued."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from ultrafast.core.events import Event, RequestFinished, TokenProduced
from ultrafast.core.request import Request, SamplingParams
from ultrafast.core.step import TokenLogprobs
from ultrafast.core.tiers import ServiceTier
from ultrafast.engine.assembly import make_scheduler
from ultrafast.engine.llama.executor import LlamaExecutor
from ultrafast.engine.options import EngineOptions
from ultrafast.engine.paired import PairedExecutor
from ultrafast.kv.ledger import num_sequences
from ultrafast.sched.paired import CHUNK_TOKENS, PairedScheduler, limits_alone
from ultrafast.sched.scheduler import Scheduler

pytestmark = pytest.mark.integration

PROMPT = "Write about the sea, the wind and a lighthouse keeper who counts the waves each night. " * 4
NUM_TOKENS = 16
Answer = list[tuple[int, TokenLogprobs | None]]


class _Engine:
    """Two executors on one model; each run has schedulers of its own, so that cells lie where the run before left them."""

    def __init__(self, path: Path) -> None:
        self.options = EngineOptions(
            str(path),
            num_threads=1,
            threadpool_poll=0,
            max_num_running=8,
            max_num_cached=4,
            kv_capacity_tokens=4096,
            max_request_tokens=512,
            enable_prefix_cache=False,
        )
        self.shared = LlamaExecutor.load(self.options, lambda *_: None)
        self.alone = self.shared.lone(self.options, CHUNK_TOKENS)
        self.prompt = self.shared.vocab.tokenize(PROMPT, add_special=True, parse_special=False)

    def close(self) -> None:
        self.alone.close()
        self.shared.close()

    def request(self, name: str, *, is_deterministic: bool, output: tuple[int, ...] = (), **fields: object) -> Request:
        params = SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=NUM_TOKENS, num_logprobs=5, ignore_eos=True)
        values: dict[str, object] = {"use_cache": False, "may_speculate": False, **fields}
        return Request(
            name,
            tuple(self.prompt),
            params,
            output_tokens=output,
            is_deterministic=is_deterministic,
            **values,  # type: ignore[arg-type]
        )

    def run(self, *requests: Request, late: Request | None = None, late_after: int = 10) -> dict[str, Answer]:
        """Run requests to their end, `late` added when the first has so many tokens; return tokens and log-probabilities."""
        shared = make_scheduler(self.shared.facts, self.options)
        facts = self.shared.facts
        first_id = num_sequences(facts.max_num_running + facts.max_num_paused, facts.max_num_cached)
        scheduler = PairedScheduler(shared, Scheduler(limits_alone(shared.limits, first_id)))
        executor = PairedExecutor(self.shared, self.alone, first_id)
        answers: dict[str, Answer] = defaultdict(list)
        now = 0.0

        def take(events: list[Event]) -> None:
            for event in events:
                if isinstance(event, TokenProduced):
                    answers[event.request_id].append((event.token, event.logprobs))
                elif isinstance(event, RequestFinished):
                    assert event.error is None, event.error
                    executor.end_request(event.request_id)

        for request in requests:
            executor.begin_request(request)
            take(scheduler.add(request, now))
        while scheduler.has_work:
            plan = scheduler.plan(now)
            assert not executor.apply_kv(list(plan.kv_ops))  # type: ignore[misc]
            result = executor.run(plan)
            now += max(result.duration_s, 0.001)
            take(scheduler.complete(plan, result, now))
            if late is not None and len(answers[requests[0].request_id]) >= late_after:
                executor.begin_request(late)
                take(scheduler.add(late, now))
                late = None
        return answers


@pytest.fixture(scope="module")
def engine(model_path: Path) -> Iterator[_Engine]:
    instance = _Engine(model_path)
    yield instance
    instance.close()


@pytest.fixture(scope="module")
def reference(engine: _Engine) -> Answer:
    answer = engine.run(engine.request("d", is_deterministic=True))["d"]
    assert len(answer) == NUM_TOKENS
    return answer


def _others(engine: _Engine) -> list[Request]:
    """Seven, of other lengths and tiers."""
    tiers = list(ServiceTier)
    return [
        Request(f"o{i}", tuple(engine.prompt[: 20 + 9 * i]), SamplingParams(max_tokens=8 + i), tiers[i % 4]) for i in range(7)
    ]


def test_beside_seven_others_every_float_is_the_same(engine: _Engine, reference: Answer) -> None:
    answers = engine.run(engine.request("d", is_deterministic=True), *_others(engine))
    assert len(answers) == 8
    assert answers["d"] == reference, "tokens and log-probabilities"


def test_without_it_they_are_not(engine: _Engine) -> None:
    """The control: the very same request in the shared pool gets other floats in company."""
    alone = engine.run(engine.request("plain", is_deterministic=False))["plain"]
    beside = engine.run(*_others(engine), engine.request("plain", is_deterministic=False))["plain"]
    assert [logprobs for _, logprobs in alone] != [logprobs for _, logprobs in beside]


def test_one_that_was_displaced_and_started_again_is_the_same(engine: _Engine, reference: Answer) -> None:
    urgent = engine.request("urgent", is_deterministic=True, tier=ServiceTier.ULTRAFAST)
    answers = engine.run(engine.request("d", is_deterministic=True, tier=ServiceTier.FLEX), late=urgent)
    assert answers["d"] == reference
    assert answers["urgent"] == reference


def test_one_that_continues_where_it_stopped_is_the_same(engine: _Engine, reference: Answer) -> None:
    given = tuple(token for token, _ in reference[:9])
    answers = engine.run(engine.request("d", is_deterministic=True, output=given), *_others(engine))
    assert answers["d"] == reference[9:]
