"""The service over the real engine: what a client would get, before HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ultrafast.core.errors import ContextLengthError
from ultrafast.core.request import Request
from ultrafast.engine.client import EngineClient
from ultrafast.engine.llama.vocab import Vocab
from ultrafast.engine.messages import StepReport
from ultrafast.engine.options import EngineOptions
from ultrafast.serving.contract import (
    ChatCall,
    ChoiceFinished,
    Completed,
    CompletionCall,
    Delta,
    GenerationOptions,
    ResponseFormat,
    ServingEvent,
    Started,
)
from ultrafast.serving.service import Service

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(model_path: Path) -> AsyncIterator[Service]:
    vocab = Vocab.load(str(model_path))
    engine = EngineClient(EngineOptions(str(model_path), num_threads=1, kv_capacity_tokens=4096, threadpool_poll=0))
    service = Service(engine, vocab, model_id="m", created_s=0)
    try:
        await engine.start()
        yield service
    finally:
        await engine.close()
        service.close()
        vocab.close()


def chat(service: Service, content: str, **options: Any) -> AsyncGenerator[ServingEvent, None]:
    options = {"temperature": 0.0, "max_tokens": 24, **options}
    call = ChatCall("t", "m", [{"role": "user", "content": content}], GenerationOptions(**options), time.monotonic())
    return service.chat(call)


async def collect(stream: AsyncGenerator[ServingEvent, None]) -> list[ServingEvent]:
    return [event async for event in stream]


def text(events: list[ServingEvent], index: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta) and event.index == index)


def completed(events: list[ServingEvent]) -> Completed:
    assert isinstance(events[-1], Completed)
    return events[-1]


async def test_greedy_answer_is_the_same_twice_and_cached_the_second_time(service: Service) -> None:
    question = "What is the capital of France? Answer in one short sentence."
    first = await collect(chat(service, question))
    second = await collect(chat(service, question))
    assert "Paris" in text(first)
    assert text(first) == text(second)
    started = second[0]
    assert isinstance(started, Started)
    assert started.num_cached_tokens > 0
    assert completed(second).usage.num_cached_tokens == started.num_cached_tokens


async def test_parts_of_the_time_fit_together(service: Service) -> None:
    began_s = time.monotonic()
    events = await collect(chat(service, "Count to five."))
    total_s = time.monotonic() - began_s
    timings = completed(events).timings
    assert timings.queue_s >= 0
    assert 0 < timings.prefill_s <= timings.compute_s
    assert timings.queue_s + timings.compute_s <= total_s
    assert timings.prefill_s <= timings.ttft_s <= total_s


async def test_stop_string_and_choices(service: Service) -> None:
    events = await collect(chat(service, "Write the numbers 1, 2, 3, 4, 5 separated by commas.", stop=("3",), num_choices=2))
    for index in range(2):
        assert "3" not in text(events, index)
        assert ChoiceFinished(index, "stop", "3") in events


async def test_a_seed_repeats_and_another_differs(service: Service) -> None:
    """Alone in its steps and without the cache, so that not even rounding can differ."""
    options: dict[str, Any] = {"temperature": 1.5, "is_cached": False}
    answers = [text(await collect(chat(service, "Tell me a story.", seed=seed, **options))) for seed in (11, 11, 12)]
    assert answers[0] == answers[1] != answers[2]


async def test_schema_is_obeyed(service: Service) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "size": {"enum": ["small", "large"]}},
        "required": ["city", "size"],
        "additionalProperties": False,
    }
    events = await collect(chat(service, "Describe Paris.", max_tokens=64, response_format=ResponseFormat("json_schema", schema)))
    answer = json.loads(text(events))
    assert set(answer) == {"city", "size"}
    assert answer["size"] in ("small", "large")
    assert ChoiceFinished(0, "stop") in events


async def test_logprobs_belong_to_the_text(service: Service) -> None:
    events = await collect(chat(service, "Say hello.", num_logprobs=2, max_tokens=8))
    entries = [entry for event in events if isinstance(event, Delta) for entry in event.logprobs]
    assert b"".join(entry.token_bytes for entry in entries).decode() == text(events)
    assert len(entries) == completed(events).usage.num_output_tokens
    assert all(entry.logprob == entry.top[0][2] for entry in entries)  # greedy: the chosen one is the most likely


async def test_completion_with_echo(service: Service) -> None:
    call = CompletionCall(
        "t", "m", ["One, two, three,"], GenerationOptions(temperature=0.0, max_tokens=4, echo=True), time.monotonic()
    )
    events = await collect(service.complete(call))
    assert text(events).startswith("One, two, three, four")
    assert ChoiceFinished(0, "length") in events


async def test_too_long_names_both_counts(service: Service) -> None:
    with pytest.raises(ContextLengthError, match=r"4096 tokens.*\(\d+ in the prompt, 4096 in the output\)"):
        await collect(chat(service, "x", max_tokens=4096))


async def test_the_next_turn_computes_only_what_the_user_says(service: Service) -> None:
    """Whichever way the answer ended, with its last token sampled but never fed to the model."""
    messages = [{"role": "user", "content": "Name three rivers of France, please."}]
    options = GenerationOptions(temperature=0.0, max_tokens=12, cache_salt="rivers")
    answer = text(await collect(service.chat(ChatCall("t", "m", messages, options, time.monotonic()))))
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Go on."}]
    is_begun, begun_ids = asyncio.Event(), set[str]()

    def on_request(request: Request) -> None:  # the turns of earlier tests are begun as well
        if request.is_internal and request.cache_salt == "rivers":
            begun_ids.add(request.request_id)

    def on_report(report: StepReport) -> None:
        if any(event.request_id in begun_ids for event in report.finished):
            is_begun.set()

    service._engine.add_request_listener(on_request)  # type: ignore[attr-defined]
    service._engine.add_listener(on_report)  # type: ignore[attr-defined]
    async with asyncio.TaskGroup() as group:
        between_calls = group.create_task(service.run())
        async with asyncio.timeout(60):
            await is_begun.wait()
        between_calls.cancel()
    events = await collect(service.chat(ChatCall("t", "m", messages, options, time.monotonic())))
    # What the user says, the end of the turn, and the header of the answer.
    tail = await service.tokenize("Go on.<|im_end|>\n<|im_start|>assistant\n", add_special=False)
    usage = completed(events).usage
    assert usage.num_prompt_tokens - usage.num_cached_tokens == len(tail)
