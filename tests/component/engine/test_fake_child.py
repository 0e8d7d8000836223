"""The product's own child process with the real scheduler and an engine without a model."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from ultrafast.core.events import RequestFinished, TokenProduced
from ultrafast.core.request import FinishReason, Request, SamplingParams
from ultrafast.engine.client import CHILD_COMMAND, EngineClient
from ultrafast.engine.fake import expected_tokens
from ultrafast.engine.options import EngineOptions

VOCAB_SIZE = 32_000


@pytest.fixture
async def client() -> AsyncIterator[EngineClient]:
    options = EngineOptions("none", kv_capacity_tokens=4096, max_num_running=8)
    engine = EngineClient(options, command=(*CHILD_COMMAND, "--executor", "fake"))
    await engine.start()
    yield engine
    await engine.close(drain_timeout_s=60)


def make_request(index: int, max_tokens: int) -> Request:
    prompt = (*range(1, 40), 100 + index)  # a shared prefix
    return Request(f"r{index}", prompt, SamplingParams(max_tokens=max_tokens, seed=index), arrival_s=time.monotonic())


async def collect(client: EngineClient, request: Request, kill_at: int | None = None) -> tuple[list[int], RequestFinished]:
    tokens: list[int] = []
    async for batch in client.submit(request):
        tokens += [event.token for event in batch if isinstance(event, TokenProduced)]
        if kill_at is not None and len(tokens) >= kill_at and (pid := client.health().pid) is not None:
            os.kill(pid, signal.SIGKILL)
            kill_at = None
    end = batch[-1]
    assert isinstance(end, RequestFinished)
    return tokens, end


async def test_many_requests_get_exactly_their_tokens(client: EngineClient) -> None:
    requests = [make_request(index, max_tokens=30 + index) for index in range(20)]
    results = await asyncio.gather(*[collect(client, request) for request in requests])
    for request, (tokens, end) in zip(requests, results, strict=True):
        assert tokens == expected_tokens(request, vocab_size=VOCAB_SIZE)
        assert end.reason is FinishReason.LENGTH
        assert end.num_output_tokens == len(tokens)
    assert sum(end.num_cached_tokens for _, end in results) > 0


async def test_a_crash_in_the_middle_changes_no_token(client: EngineClient) -> None:
    requests = [make_request(index, max_tokens=400) for index in range(12)]
    kills = [50, None, None, 200, *[None] * 8]
    lost = asyncio.Event()
    client.add_restart_listener(lambda _: lost.set())
    results = await asyncio.gather(*[collect(client, r, kill) for r, kill in zip(requests, kills, strict=True)])
    await lost.wait()
    for request, (tokens, end) in zip(requests, results, strict=True):
        assert end.reason is FinishReason.LENGTH, end
        assert tokens == expected_tokens(request, vocab_size=VOCAB_SIZE)


async def test_a_refused_request_ends_with_its_reason_and_the_engine_lives_on(client: EngineClient) -> None:
    refused = Request("bad", (VOCAB_SIZE,), SamplingParams(max_tokens=3))
    _, end = await collect(client, refused)
    assert end.reason is FinishReason.ERROR
    assert "cannot run" in str(end.error)
    tokens, _ = await collect(client, make_request(1, max_tokens=5))
    assert len(tokens) == 5


async def test_deterministic_requests_run_beside_others_and_survive_a_crash() -> None:
    options = EngineOptions("none", kv_capacity_tokens=4096, max_num_running=8, deterministic="on")
    engine = EngineClient(options, command=(*CHILD_COMMAND, "--executor", "fake"))
    await engine.start()
    try:
        assert engine.facts.deterministic == "on"
        lone = [replace(make_request(index, 30), is_deterministic=True, use_cache=False) for index in range(2)]
        others = [make_request(index, 30) for index in range(2, 8)]
        results = await asyncio.gather(
            collect(engine, lone[0], kill_at=10), *[collect(engine, one) for one in [lone[1], *others]]
        )
        for request, (tokens, end) in zip([*lone, *others], results, strict=True):
            assert tokens == expected_tokens(request, vocab_size=VOCAB_SIZE)
            assert end.reason is FinishReason.LENGTH
    finally:
        await engine.close(drain_timeout_s=60)
