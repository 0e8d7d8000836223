"""The official OpenAI client, unmodified, against the application on a loopback port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import openai
import pytest
from tests.component.api.edge import Setup, listening, make
from tests.component.api.fake_service import Gate, playing, speaking, waiting
from tests.component.api.test_api_chat import STREAMS

from ultrafast.api.auth import ApiKeys
from ultrafast.core.errors import (
    ContextLengthError,
    EngineFailedError,
    OverloadedError,
    UltrafastError,
    UnavailableError,
)

MESSAGES = [{"role": "user", "content": "hi"}]
Connect = Callable[..., AbstractAsyncContextManager[openai.AsyncOpenAI]]


@asynccontextmanager
async def connected(setup: Setup, key: str = "none", max_retries: int = 0) -> AsyncIterator[openai.AsyncOpenAI]:
    async with listening(setup) as port:
        url = f"http://127.0.0.1:{port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=max_retries) as sdk:
            yield sdk


async def test_whole_and_streamed_answers() -> None:
    async with connected(make()) as sdk:
        answer = await sdk.chat.completions.create(model="m", messages=MESSAGES, service_tier="priority")
        assert answer.choices[0].message.content == "Hello world"
        assert answer.service_tier == "priority"
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens_details.cached_tokens == 3
        stream = await sdk.chat.completions.create(
            model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == "Hello world"
        assert chunks[-1].usage is not None
        assert chunks[-1].choices == []


async def test_text_completions_and_models() -> None:
    async with connected(make()) as sdk:
        completion = await sdk.completions.create(model="m", prompt=["a", "b"])
        assert [choice.text for choice in completion.choices] == ["Hello world", "Hello world"]
        assert [chunk.choices[0].text async for chunk in await sdk.completions.create(model="m", prompt="a", stream=True)] == [
            "Hello",
            " world",
            "",
        ]
        assert [model.id async for model in sdk.models.list()] == ["m"]
        assert (await sdk.models.retrieve("m")).id == "m"


async def test_tool_calls_and_logprobs_are_put_together_by_the_sdk() -> None:
    async with connected(make({"t": STREAMS["tools"], "l": STREAMS["logprobs"]})) as sdk:
        async with sdk.chat.completions.stream(model="t", messages=MESSAGES) as stream:
            calls = (await stream.get_final_completion()).choices[0].message.tool_calls
        assert calls is not None
        assert [(call.function.name, call.function.arguments) for call in calls] == [("add", '{"a":1}'), ("now", "{}")]
        answer = await sdk.chat.completions.create(model="l", messages=MESSAGES, logprobs=True, top_logprobs=2)
        assert answer.choices[0].logprobs is not None
        assert answer.choices[0].logprobs.content is not None
        assert answer.choices[0].logprobs.content[0].token == "Hé"


ERRORS: list[tuple[UltrafastError, type[openai.APIStatusError]]] = [
    (ContextLengthError("too long"), openai.BadRequestError),
    (OverloadedError("busy"), openai.RateLimitError),
    (EngineFailedError("broke"), openai.InternalServerError),
    (UnavailableError("down"), openai.InternalServerError),
    (UltrafastError("no", code="sla_unavailable"), openai.UnprocessableEntityError),
]


@pytest.mark.parametrize(("error", "kind"), ERRORS)
async def test_errors_become_the_sdks_classes(error: UltrafastError, kind: type[openai.APIStatusError]) -> None:
    async with connected(make({"m": playing(error)})) as sdk:
        with pytest.raises(kind) as caught:
            await sdk.chat.completions.create(model="m", messages=MESSAGES)
        assert caught.value.code == error.code
        assert error.message in caught.value.message
        assert caught.value.request_id is not None


async def test_wrong_requests_become_the_sdks_classes() -> None:
    async with connected(make(keys=ApiKeys([("a", "right-key")])), key="right-key") as sdk:
        with pytest.raises(openai.NotFoundError):
            await sdk.chat.completions.create(model="nope", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError) as caught:
            await sdk.chat.completions.create(model="m", messages=MESSAGES, temperature=9)
        assert caught.value.param == "temperature"
        with pytest.raises(openai.AuthenticationError):
            await sdk.with_options(api_key="wrong-key").models.list()


async def test_an_error_in_the_stream_is_raised_after_the_text_before_it() -> None:
    async with connected(make({"m": STREAMS["failing"]})) as sdk:
        stream = await sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        chunks = aiter(stream)
        assert [(await anext(chunks)).choices[0].delta.content for _ in range(2)] == ["", "a"]
        with pytest.raises(openai.APIError, match="the engine broke"):
            await anext(chunks)


async def test_the_sdk_retries_when_it_helps_and_not_otherwise() -> None:
    setup = make({"m": playing(EngineFailedError("broke")), "busy": playing(OverloadedError("busy", retry_after_s=0.01))})
    async with connected(setup, max_retries=2) as sdk:
        with pytest.raises(openai.InternalServerError):
            await sdk.chat.completions.create(model="m", messages=MESSAGES)
        assert len(setup.service.calls) == 1
        with pytest.raises(openai.RateLimitError):
            await sdk.chat.completions.create(model="busy", messages=MESSAGES)
        assert len(setup.service.calls) == 4


async def test_closing_the_sdks_stream_aborts_the_request() -> None:
    gate = Gate()
    setup = make({"m": waiting(gate, "a"), "s": speaking("x")})
    async with connected(setup) as sdk:
        stream = await sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        await gate.entered.wait()
        await stream.close()
        await gate.left.wait()
        assert gate.num_aborted == 1
        assert (await sdk.chat.completions.create(model="s", messages=MESSAGES)).choices[0].message.content == "x"


async def test_pings_are_invisible_to_the_sdk() -> None:
    gate = Gate()
    setup = make({"m": waiting(gate, after=("late",))}, keepalive_interval_s=0.01)
    async with connected(setup) as sdk:
        stream = await sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        gate.opened.set()
        texts = [chunk.choices[0].delta.content async for chunk in stream]
        assert texts == ["", "late", None]
