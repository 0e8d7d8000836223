"""Pinned prompts: what is computed is what every conversation with that system prompt begins with."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.unit.serving.fakes import ScriptedEngine, finished

from ultrafast.core.errors import InvalidRequestError, UnavailableError
from ultrafast.core.tiers import ServiceTier
from ultrafast.serving.pinned import compute_pinned
from ultrafast.serving.prompts import Conversation


class Tokens:
    """A service whose template is `[1] system [2] user [3]`, one token per character."""

    async def tokenize_chat(self, conversation: Conversation) -> list[int]:
        system, user = (message["content"] for message in conversation.messages)
        if not system:
            raise InvalidRequestError("empty")
        return [1, *map(ord, system), 2, *map(ord, user), 3]


@contextmanager
def engine() -> Iterator[ScriptedEngine]:
    yield ScriptedEngine(lambda request: [(finished(request),)])


async def test_the_common_beginning_is_computed_for_every_tenant_and_kept() -> None:
    with engine() as scripted:
        num_tokens = await compute_pinned(Tokens(), scripted, ["You help."], ["a", "b"], lambda: 5.0)  # type: ignore[arg-type]
    assert num_tokens == 11
    assert [request.cache_salt for request in scripted.requests] == ["a", "b"]
    for request in scripted.requests:
        assert request.prompt_tokens == (1, *map(ord, "You help."), 2)
        assert (request.is_pinned, request.tier, request.params.max_tokens) == (True, ServiceTier.FLEX, 1)


async def test_one_that_cannot_be_computed_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    with engine() as scripted, caplog.at_level(logging.WARNING, "ultrafast.server"):
        await compute_pinned(Tokens(), scripted, ["", "fine"], [""], lambda: 5.0)  # type: ignore[arg-type]
    assert len(scripted.requests) == 1
    assert "pinned prompt 1" in caplog.text


async def test_an_engine_that_stops_is_no_failure_of_the_server() -> None:
    with engine() as scripted:
        scripted.error = UnavailableError("stopping")
        assert await compute_pinned(Tokens(), scripted, ["a"], [""], lambda: 5.0) == 0  # type: ignore[arg-type]
