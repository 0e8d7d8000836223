"""What the engine's gate decides, as the caller of serving sees it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.unit.serving.fakes import FakeTokenizer, finished, says
from tests.unit.serving.test_service import World

from ultrafast.core.errors import InvalidRequestError, OverloadedError, SupersededError
from ultrafast.core.events import DEAD_END, DropReason, Event, RequestScheduled, TokenProduced
from ultrafast.core.request import FinishReason, Request, RequestSlo
from ultrafast.core.tiers import ServiceTier
from ultrafast.serving.contract import Started

UNREACHABLE = DropReason.SLO_UNREACHABLE


async def _answer(world: World, **options: object) -> list[object]:
    try:
        return [event async for event in world.chat(**options)]  # type: ignore[arg-type]
    finally:
        world.service.close()


@pytest.mark.parametrize("reason", list(DropReason))
async def test_a_refusal_says_why_and_when_to_come_back(reason: DropReason) -> None:
    ending = FinishReason.EXPIRE if reason is DropReason.QUEUE_TIMEOUT else FinishReason.REJECT

    def script(request: Request) -> list[tuple[Event, ...]]:
        wait_s = None if reason is UNREACHABLE else 2.5
        return [(replace(finished(request, ending), drop_reason=reason, retry_after_s=wait_s),)]

    with pytest.raises(InvalidRequestError if reason is UNREACHABLE else OverloadedError) as caught:
        await _answer(World(script=script))
    assert caught.value.drop_reason == reason.value
    if isinstance(caught.value, OverloadedError):
        assert caught.value.retry_after_s == 2.5
        assert caught.value.code == ("queue_timeout" if reason is DropReason.QUEUE_TIMEOUT else "slow_down")
        assert "x-stainless-retry-count: 1" in (caught.value.hint or ""), "what only Retry-After does not tell"
    else:
        assert caught.value.code == "sla_unavailable"


@pytest.mark.parametrize(
    ("ttl_s", "named"),
    [
        (None, "tier default lets"),
        (0.0005, "x-queue-ttl-ms allows: 0.5 ms"),
        (3.0, "allows: 3000 ms"),
        (60.0, "tier default lets"),
    ],
)
async def test_whose_patience_ended_is_said(ttl_s: float | None, named: str) -> None:
    """It waited for three seconds: by its tier's limit, unless its own was shorter."""

    def script(request: Request) -> list[tuple[Event, ...]]:
        end = finished(request, FinishReason.EXPIRE)
        return [(replace(end, drop_reason=DropReason.QUEUE_TIMEOUT, retry_after_s=2.5),)]

    with pytest.raises(OverloadedError) as caught:
        await _answer(World(script=script), slo=RequestSlo(queue_ttl_s=ttl_s))
    assert named in caught.value.message
    assert ("x-queue-ttl-ms" in (caught.value.hint or "")) == ("allows" in named)


async def test_what_can_never_run_is_the_clients_mistake() -> None:
    def script(request: Request) -> list[tuple[Event, ...]]:
        end = finished(request, FinishReason.REJECT)
        return [(replace(end, error="it cannot be satisfied", error_code="invalid_json_schema", error_param="response_format"),)]

    with pytest.raises(InvalidRequestError, match="it cannot be satisfied") as caught:
        await _answer(World(script=script))
    assert (caught.value.code, caught.value.param) == ("invalid_json_schema", "response_format")
    assert caught.value.drop_reason is None


async def test_another_tier_than_asked_for_is_told() -> None:
    plain = says(FakeTokenizer(), "Hello")

    def script(request: Request) -> list[tuple[Event, ...]]:
        scheduled = RequestScheduled(request.request_id, 10.5, 3, ServiceTier.FLEX, DropReason.SLO_AT_RISK)
        return [(scheduled,), *plain(request)[1:]]

    events = await _answer(World(script=script), requested_tier=ServiceTier.PRIORITY)
    started = next(event for event in events if isinstance(event, Started))
    assert (started.tier, started.tier_reason) == (ServiceTier.FLEX, "slo_at_risk")


async def test_a_superseded_call_ends_with_that_error() -> None:
    world = World(script=lambda request: [(finished(request, FinishReason.ABORT),)])
    key = ("alice", "editor")

    async def older() -> None:
        with pytest.raises(SupersededError):
            await _answer(world, supersede_key=key)

    async with asyncio.TaskGroup() as group:
        ending = group.create_task(older())
        await asyncio.sleep(0)
        with world.service._superseding.claim(key):
            await ending


async def test_a_newer_call_of_the_same_key_aborts_the_older_one() -> None:
    world = World(hangs=True)
    key = ("alice", "editor")
    older = world.chat(supersede_key=key)
    assert isinstance(await anext(older), Started)
    newer = world.chat(supersede_key=key)
    assert isinstance(await anext(newer), Started)
    assert [stream.is_aborted for stream in world.engine.streams] == [True, False]
    await older.aclose()
    await newer.aclose()
    world.service.close()


@pytest.mark.parametrize("num_tokens", [0, 2])
async def test_an_output_that_can_neither_go_on_nor_end_is_no_failure_of_the_server(num_tokens: int) -> None:
    def script(request: Request) -> list[tuple[Event, ...]]:
        end = finished(request, FinishReason.ERROR, num_tokens, error="nothing more may follow")
        tokens = [(TokenProduced(request.request_id, 80),)] * num_tokens
        return [*tokens, (replace(end, error_code=DEAD_END),)]

    with pytest.raises(InvalidRequestError, match=f"after {num_tokens} tokens: nothing more may follow") as caught:
        await _answer(World(script=script))
    assert caught.value.code == "output_stuck"
    assert caught.value.hint


def _full(is_refused: bool) -> World:
    """An engine that seems to be full; whether it is, it says when it is asked."""

    def script(request: Request) -> list[tuple[Event, ...]]:
        if not request.is_inquiry:
            return says(tokenizer, "Hello")(request)
        end = finished(request, FinishReason.REJECT if is_refused else FinishReason.ABORT)
        return [(replace(end, drop_reason=DropReason.QUEUE_FULL, retry_after_s=2.5) if is_refused else end,)]

    world = World(script=script)
    tokenizer = world.tokenizer
    world.engine.is_full = True
    return world


async def test_what_has_no_room_is_refused_before_its_prompt_is_read() -> None:
    world = _full(is_refused=True)
    num_read = world.tokenizer.num_tokenized_chars
    with pytest.raises(OverloadedError) as caught:
        await _answer(world, num_choices=2, requested_tier=ServiceTier.FLEX)
    assert (caught.value.drop_reason, caught.value.retry_after_s) == ("queue_full", 2.5)
    assert world.tokenizer.num_tokenized_chars == num_read
    (request,) = world.engine.requests
    assert (request.is_inquiry, request.tier, request.slo.is_movable) == (True, ServiceTier.FLEX, False)


async def test_what_has_room_after_all_is_answered() -> None:
    world = _full(is_refused=False)
    events = await _answer(world)
    assert isinstance(events[0], Started)
    assert [request.is_inquiry for request in world.engine.requests] == [True, False]


async def test_of_a_burst_those_who_had_room_before_the_others_took_it_ask_again() -> None:
    world = _full(is_refused=False)
    world.engine.num_filled_up = 1
    await _answer(world)
    assert [request.is_inquiry for request in world.engine.requests] == [True, True, False]


async def test_a_call_that_is_wrong_is_told_so_also_when_the_engine_is_full() -> None:
    with pytest.raises(InvalidRequestError):
        await _answer(_full(is_refused=True), stop_token_ids=(10**6,))
