"""What users of other servers reported, on a real server with the bundled model, through the official OpenAI client.

One server for the whole file, with a KV pool so small that it runs short: the cases must not disturb each other.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest
from openai.types import CompletionChoice
from tests.integration.live_metrics import DEADLINE_S, is_idle, metric, wait_until
from tests.servers import RunningServer, start_server

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
MODEL = "tiny"
POOL_TOKENS = 1024
MARGIN = 1.5


@pytest.fixture(scope="module")
def server(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    instance = start_server(
        model_path,
        tmp_path_factory.mktemp("cases") / "server.log",
        model__served_name=MODEL,
        engine__kv_capacity_tokens=POOL_TOKENS,
        engine__max_num_running=6,
        engine__max_step_tokens=64,
        engine__num_threads=1,
        server__stall_after_s=2,
        server__max_body_bytes=300_000,
    )
    try:
        yield instance
        instance.stop()
    finally:
        instance.kill()


@pytest.fixture
async def client(server: RunningServer):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=DEADLINE_S) as instance:
        yield instance


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def words(num: int, salt: str) -> str:
    """Text of about `num` tokens that no other test sends."""
    return f"{salt} " + "stone river cloud " * (num // 3)


async def text_of(client: openai.AsyncOpenAI, prompt: str, **options: object) -> tuple[str, object]:
    answer = await client.completions.create(model=MODEL, prompt=prompt, temperature=0, **options)  # type: ignore[call-overload]
    return answer.choices[0].text, answer


def assert_same_up_to_a_near_tie(before, after) -> None:
    """Floats are added in another order in a batch, so two tokens that are nearly equally likely may swap places."""
    for i, (one, other) in enumerate(zip(before.tokens, after.tokens, strict=True)):
        if one != other:
            first, second = sorted(before.top_logprobs[i].values(), reverse=True)[:2]
            assert first - second < MARGIN, f"token {i}: {one!r} became {other!r} although it led by {first - second:.2f}"
            return


@dataclass
class Streamed:
    """What the chunks of a stream add up to."""

    text: str = ""
    tokens: list[str] = field(default_factory=list)
    top_logprobs: list[dict[str, float]] = field(default_factory=list)

    def add(self, choice: CompletionChoice) -> None:
        self.text += choice.text
        if choice.logprobs is not None:
            self.tokens += choice.logprobs.tokens or []
            self.top_logprobs += choice.logprobs.top_logprobs or []


async def test_streams_and_whole_answers_agree(client: openai.AsyncOpenAI) -> None:
    messages = [{"role": "user", "content": "Name three animals."}]
    whole = await client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=30)
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=messages,
        temperature=0,
        max_tokens=30,
        stream=True,
        stream_options={"include_usage": True},
        service_tier="priority",
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert {chunk.service_tier for chunk in chunks} == {"priority"}
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0, "the second time the prompt is in the cache"


async def test_equal_prompts_that_arrive_together_are_computed_once(server: RunningServer, client: openai.AsyncOpenAI) -> None:
    before = metric(server, "ultrafast_computed_tokens_total")
    prompt = words(300, "together")
    answers = await asyncio.gather(*(text_of(client, prompt + f" number {i}", max_tokens=4) for i in range(4)))
    num_prompt = answers[0][1].usage.prompt_tokens  # type: ignore[attr-defined]
    computed = metric(server, "ultrafast_computed_tokens_total") - before
    assert computed < num_prompt + 4 * 30
    cached = sorted(answer.usage.prompt_tokens_details.cached_tokens for _, answer in answers)  # type: ignore[attr-defined]
    assert cached[0] == 0
    assert cached[1] > 250


async def test_kv_that_runs_short_fails_nobody_and_changes_nobody(server: RunningServer, client: openai.AsyncOpenAI) -> None:
    prompts = [words(560, salt) for salt in ("one", "two", "three")]
    options = {"max_tokens": 120, "logprobs": 2, "extra_body": {"ignore_eos": True, "cache": "off"}}
    alone = [(await text_of(client, prompt, **options))[1] for prompt in prompts]
    together = await asyncio.gather(*(text_of(client, prompt, **options) for prompt in prompts))
    assert [answer.usage.completion_tokens for _, answer in together] == [120] * 3  # type: ignore[attr-defined]
    for before, (_, after) in zip(alone, together, strict=True):
        assert_same_up_to_a_near_tie(before.choices[0].logprobs, after.choices[0].logprobs)  # type: ignore[attr-defined]
    await is_idle(server, POOL_TOKENS)


async def test_too_long_prompts_name_both_counts(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await text_of(client, words(3000, "long"), max_tokens=4)
    assert caught.value.code == "context_length_exceeded"
    assert "1024" in caught.value.message


async def test_every_chunk_is_text_even_when_a_character_is_cut(client: openai.AsyncOpenAI) -> None:
    """A schema leaves the model no other answer than characters of several tokens each; `max_tokens` cuts everywhere."""
    spoken = "é👋🏽世"
    schema = {"type": "json_schema", "json_schema": {"name": "greeting", "schema": {"enum": [spoken]}}}
    options = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "response_format": schema}
    answer, num_cut = json.dumps(spoken, ensure_ascii=False), 0
    whole = await client.chat.completions.create(model=MODEL, max_tokens=60, **options)  # type: ignore[call-overload]
    assert whole.choices[0].message.content == answer
    for max_tokens in range(1, whole.usage.completion_tokens + 1):
        stream = await client.chat.completions.create(model=MODEL, max_tokens=max_tokens, stream=True, **options)  # type: ignore[call-overload]
        shown = "".join([choice.delta.content or "" async for chunk in stream for choice in chunk.choices])
        assert answer.startswith(shown.rstrip("\ufffd")), "what is there is exact"
        assert "\ufffd" not in shown[:-1], "an incomplete character is shown once, at the end"
        num_cut += shown.endswith("\ufffd")
    assert shown == answer
    assert num_cut >= 3, "the characters do consist of several tokens"


async def test_a_schema_is_obeyed_and_a_bad_one_is_refused(client: openai.AsyncOpenAI) -> None:
    def json_schema(schema: dict[str, object]) -> dict[str, object]:
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}

    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    ask = [{"role": "user", "content": "A person as JSON."}]
    answer = await client.chat.completions.create(
        model=MODEL, messages=ask, max_tokens=60, temperature=1.2, response_format=json_schema(schema), seed=3
    )
    person = json.loads(answer.choices[0].message.content)
    assert set(person) == {"name", "age"}
    assert 1 <= person["age"] <= 99
    for broken in (
        {"type": "nonsense"},
        {"type": "string", "pattern": "(("},
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"enum": []},
        {"type": "string", "minLength": 5, "maxLength": 2},
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model=MODEL, messages=ask, response_format=json_schema(broken))
        assert caught.value.param == "response_format"


async def test_a_stopped_engine_is_not_ready_and_recovers(server: RunningServer, client: openai.AsyncOpenAI) -> None:
    ready_url = f"{server.url}/health/ready"
    pid = server.engine_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        pending = asyncio.get_running_loop().create_task(text_of(client, "Once upon a time", max_tokens=4))
        await wait_until(lambda: status(ready_url) == 503, "503 while work is pending and nothing moves")
        assert status(f"{server.url}/health/live") == 200
    finally:
        os.kill(pid, signal.SIGCONT)
    await pending
    await wait_until(lambda: status(ready_url) == 200, "ready again")


async def test_streams_continue_after_kill_9(server: RunningServer, client: openai.AsyncOpenAI) -> None:
    """Token by token what it would have been, with none lost or said twice where the engines changed."""
    num_tokens = 40
    restarts = metric(server, "ultrafast_engine_restarts_total")
    prompts = [f"Story number {i}: the fox" for i in range(4)]
    options = {"max_tokens": num_tokens, "logprobs": 2, "extra_body": {"ignore_eos": True}}
    quiet = [(await text_of(client, prompt, **options))[1].choices[0] for prompt in prompts]  # type: ignore[attr-defined]
    has_begun = asyncio.Event()

    async def stream_one(prompt: str, parts: Streamed) -> None:
        stream = await client.completions.create(model=MODEL, prompt=prompt, temperature=0, stream=True, **options)  # type: ignore[call-overload]
        async for chunk in stream:
            for choice in chunk.choices:
                parts.add(choice)
            if len(parts.tokens) >= 3:
                has_begun.set()

    streams = [Streamed() for _ in prompts]
    async with asyncio.TaskGroup() as group:
        for prompt, parts in zip(prompts, streams, strict=True):
            group.create_task(stream_one(prompt, parts))
        await has_begun.wait()
        os.kill(server.engine_pid, signal.SIGKILL)
        num_before = [len(parts.tokens) for parts in streams]
    assert any(0 < num < num_tokens for num in num_before), "the crash is in the middle of a stream"
    assert metric(server, "ultrafast_engine_restarts_total") - restarts == 1
    num_same = 0
    for parts, before in zip(streams, quiet, strict=True):
        assert len(parts.tokens) == num_tokens
        assert parts.text == "".join(parts.tokens)
        assert_same_up_to_a_near_tie(before.logprobs, parts)
        num_same += parts.tokens == before.logprobs.tokens
    assert num_same, "near ties cannot excuse them all"
    await is_idle(server, POOL_TOKENS)
