"""The product's own child process with the real scheduler and an engine without a model."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ultrafast.core.events import RequestFinished, TokenProduced
from ultrafast.core.request import FinishReason, Request, SamplingParams
from ultrafast.engine.client import CHILD_COMMAND, EngineClient
from ultrafast.engine.fake import expected_tokens
from ultrafast.engine.options import EngineOptions
from ultrafast.serving.pinned import PinnedPrompts
from ultrafast.serving.prompts import Conversation

VOCAB_SIZE = 32_000


@pytest.fixture
async def client() -> AsyncIterator[EngineClient]:
    options = EngineOptions("none", kv_capacity_tokens=4096, max_num_running=8)
    engine = EngineClient(options, command=(*CHILD_COMMAND, "--executor", "fake"))
    await engine.start()
    yield engine
    await engine.close(drain_timeout_s=60)


@pytest.mark.parametrize(("level", "is_written"), [("warning", True), ("error", False)])
async def test_the_log_of_the_child_is_set_up_as_the_servers(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, level: str, is_written: bool
) -> None:
    (tmp_path / "file").touch()
    folder = str(tmp_path / "file" / "kv")  # no folder can be there: worth a warning
    options = EngineOptions("none", kv_capacity_tokens=4096, kv_host_bytes=1 << 20, kv_disk_bytes=1 << 20, kv_disk_path=folder)
    command = (*CHILD_COMMAND, "--executor", "fake")
    engine = EngineClient(options, command=command, arguments=("--log-level", level, "--log-format", "json"))
    await engine.start()
    await engine.close()
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert len(lines) == int(is_written)
    for line in lines:
        assert (line["level"], line["logger"]) == ("warning", "ultrafast.engine")
        assert "the KV level on disk is off" in line["message"]


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
    assert end.reason is FinishReason.REJECT
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


class _Tokens:
    """A chat template for the engine without a model: one token per character."""

    async def tokenize_chat(self, conversation: Conversation) -> list[int]:
        return [ord(character) for message in conversation.messages for character in message["content"]]


SYSTEM = "You are a keeper of lighthouses, and you count the ships. " * 4


async def num_cached(client: EngineClient, name: str, salt: str) -> int:
    """How much of the pinned prompt the first request of a tenant finds."""
    tokens = (*map(ord, SYSTEM), 7, 8, 9)
    request = Request(name, tokens, SamplingParams(max_tokens=1), arrival_s=time.monotonic(), cache_salt=salt)
    _, end = await collect(client, request)
    return end.num_cached_tokens


async def test_pinned_prompts_are_there_again_after_a_crash_and_after_a_clear(client: EngineClient) -> None:
    rounds: list[int] = []

    class Counting(PinnedPrompts):
        async def compute(self) -> int:
            rounds.append(await super().compute())
            return rounds[-1]

    pinned = Counting(_Tokens(), client, [SYSTEM], ["a", "b", "c"], time.monotonic)  # type: ignore[arg-type]
    client.add_restart_listener(lambda _: pinned.recompute())
    client.add_clear_listener(pinned.recompute)

    async def computed(number: int) -> None:
        async with asyncio.timeout(60):
            while len(rounds) < number:  # noqa: ASYNC110 - what it waits for tells nobody
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        keeping = group.create_task(pinned.run())
        await computed(1)
        assert await num_cached(client, "first", "a") == len(SYSTEM)
        pid = client.health().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await computed(2)
        assert await num_cached(client, "after the crash", "b") == len(SYSTEM)
        client.clear_cache(with_disk=True)
        await computed(3)
        assert await num_cached(client, "after the clear", "c") == len(SYSTEM)
        keeping.cancel()
    assert rounds == [len(SYSTEM)] * 3
