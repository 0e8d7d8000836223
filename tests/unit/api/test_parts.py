"""Small pieces of the edge: keys, lifecycle, error bodies, unsupported parameters, collected answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ultrafast.api.auth import ApiKeys
from ultrafast.api.chunks import StreamFacts
from ultrafast.api.collect import Collector
from ultrafast.api.errors import ApiError, error_body, error_headers, status_of
from ultrafast.api.exchange import Exchange, Interruption
from ultrafast.api.lifecycle import Lifecycle
from ultrafast.core.clock import ManualClock
from ultrafast.core.errors import ConfigError, OverloadedError, UnavailableError
from ultrafast.serving.contract import ChoiceFinished, Delta, ToolCallDelta, Usage


async def nothing(*_: Any) -> Any:
    raise AssertionError("not used")


def exchange(**headers: str) -> Exchange:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Exchange({"headers": pairs}, nothing, nothing, ManualClock(5.0), 1.0)


def test_keys_give_their_name_and_nothing_else() -> None:
    keys = ApiKeys([("alice", "key-of-alice")])
    assert keys.check(b"Bearer key-of-alice") == "alice"
    assert "key-of-alice" not in repr(vars(keys))
    with pytest.raises(ApiError) as caught:
        keys.check(b"Bearer key-of-alicf")
    assert caught.value.status == 401
    assert ApiKeys().check(None) is None


async def test_a_lifecycle_counts_and_refuses() -> None:
    lifecycle = Lifecycle()
    call = exchange()
    lifecycle.enter(call)
    assert lifecycle.num_active == 1
    assert await lifecycle.drain(0) == 1
    lifecycle.leave(call)
    assert lifecycle.num_active == 0
    with pytest.raises(UnavailableError) as caught:
        lifecycle.enter(exchange())
    assert caught.value.code == "shutting_down"
    assert await lifecycle.drain(0) == 0


async def test_the_first_interruption_stands() -> None:
    subject = exchange()
    subject.interrupt(Interruption.DISCONNECTED)
    subject.interrupt(Interruption.SHUTDOWN)
    assert subject.interruption is Interruption.DISCONNECTED
    with pytest.raises(TimeoutError):
        async with subject.interruptible():
            await nothing_comes()


async def nothing_comes() -> None:
    await asyncio.Event().wait()


def test_request_ids_of_clients() -> None:
    assert exchange(x_request_id="good.id-1").request_id == "good.id-1"
    assert exchange(x_request_id="bad\tid").request_id.startswith("req_")
    assert exchange().request_id != exchange().request_id


def test_error_bodies_always_have_openais_four_fields() -> None:
    for error in (ApiError(400, "c", "m"), OverloadedError("m"), KeyError("x"), ConfigError("m")):
        body = json.loads(error_body(error, "id"))["error"]
        assert {"message", "type", "param", "code"} <= body.keys()
        assert body["param"] is None
    assert status_of(KeyError()) == 500
    assert status_of(ConfigError("m")) == 500


@pytest.mark.parametrize("wait_s", [0.0, 0.2, 1.0, 60.1, 120.0, 1e6])
def test_retry_after_is_what_the_sdk_accepts(wait_s: float) -> None:
    headers = dict(error_headers(OverloadedError("m", retry_after_s=wait_s)))
    assert 1 <= int(headers[b"retry-after"]) <= 120
    assert 1 <= int(headers[b"retry-after-ms"]) <= 120_000
    assert (b"x-should-retry" in headers) == (wait_s > 120)


def test_collected_choices_are_in_order() -> None:
    collector = Collector()
    for index in (1, 0):
        collector.delta(Delta(index, reasoning="r", num_tokens=1))
        collector.delta(Delta(index, f"text {index}", tool_calls=(ToolCallDelta(0, "id", "f", "{"),)))
        collector.delta(Delta(index, tool_calls=(ToolCallDelta(0, arguments="}"),)))
        collector.finish(ChoiceFinished(index, "stop", 5))
    facts = StreamFacts("id", 1, "m", "default", "fp", 1, 0)
    choices = json.loads(collector.chat(facts, Usage(1, 2, 0)))["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    assert choices[1]["message"]["content"] == "text 1"
    assert choices[1]["message"]["reasoning_content"] == "r"
    assert choices[1]["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert choices[0]["stop_reason"] == 5
