"""Pinned prompts: what is computed is what every conversation with that system prompt begins with."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest
from tests.unit.serving.fakes import ScriptedEngine, finished

from ultrafast.core.errors import InvalidRequestError, UnavailableError
from ultrafast.core.request import FinishReason
from ultrafast.core.tiers import ServiceTier
from ultrafast.serving.pinned import PinnedPrompts
from ultrafast.serving.prompts import Conversation


class Tokens:
    """A service whose template is `[1] system [2] user [3]`, one token per character."""

    async def tokenize_chat(self, conversation: Conversation) -> list[int]:
        system, user = (message["content"] for message in conversation.messages)
        if not system:
            raise InvalidRequestError("empty")
        return [1, *map(ord, system), 2, *map(ord, user), 3]


def pinned(engine: ScriptedEngine, *prompts: str, namespaces: Iterable[str] = ("",)) -> PinnedPrompts:
    return PinnedPrompts(Tokens(), engine, prompts, namespaces, lambda: 5.0)  # type: ignore[arg-type]


@contextmanager
def engine() -> Iterator[ScriptedEngine]:
    yield ScriptedEngine(lambda request: [(finished(request),)])


async def test_the_common_beginning_is_computed_for_every_tenant_and_kept() -> None:
    with engine() as scripted:
        num_tokens = await pinned(scripted, "You help.", namespaces=["a", "b"]).compute()
    assert num_tokens == 11
    assert [request.cache_salt for request in scripted.requests] == ["a", "b"]
    for request in scripted.requests:
        assert request.prompt_tokens == (1, *map(ord, "You help."), 2)
        assert (request.is_pinned, request.tier, request.params.max_tokens) == (True, ServiceTier.FLEX, 1)


async def test_one_that_cannot_be_computed_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    with engine() as scripted, caplog.at_level(logging.WARNING, "ultrafast.server"):
        await pinned(scripted, "", "fine").compute()
    assert len(scripted.requests) == 1
    assert "pinned prompt 1" in caplog.text


async def test_an_engine_that_stops_is_no_failure_of_the_server() -> None:
    with engine() as scripted:
        scripted.error = UnavailableError("stopping")
        assert await pinned(scripted, "a").compute() == 0


async def test_one_that_fails_in_the_engine_is_not_tried_again_and_one_without_an_engine_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A prompt that crashes the engine, computed again after each crash, would be a crash without an end."""
    reasons = {len("1bad2"): FinishReason.ERROR, len("1gone2"): FinishReason.ABORT}
    scripted = ScriptedEngine(
        lambda request: [(finished(request, reasons.get(len(request.prompt_tokens), FinishReason.LENGTH), error="crashed"),)]
    )
    prompts = pinned(scripted, "bad", "gone", "right!")
    with caplog.at_level(logging.WARNING, "ultrafast.server"):
        assert await prompts.compute() == len("1right!2")
        assert await prompts.compute() == len("1right!2")
    assert [len(request.prompt_tokens) for request in scripted.requests] == [5, 6, 8, 6, 8]
    assert "pinned prompt 1 is not computed: crashed" in caplog.text


async def test_it_computes_at_once_and_whenever_that_is_wanted() -> None:
    scripted = ScriptedEngine(lambda request: [(finished(request),)])
    prompts = pinned(scripted, "a")
    async with asyncio.TaskGroup() as group:
        running = group.create_task(prompts.run())
        for number in (1, 2, 3):
            while len(scripted.requests) < number:  # noqa: ASYNC110 - what it waits for tells nobody
                await asyncio.sleep(0)
            await asyncio.sleep(0.01)
            assert len(scripted.requests) == number, "and not without being asked"
            prompts.recompute()
        running.cancel()
