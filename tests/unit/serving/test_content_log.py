"""Content is logged when asked for, whole and once, however the call ends."""

import json
import logging

import pytest

from ultrafast.serving.content_log import _logged
from ultrafast.serving.contract import Delta, ToolCallDelta


async def events(*deltas, error=None):
    for delta in deltas:
        yield delta
    if error is not None:
        raise error


def fields(caplog):
    return [(record.message, record.fields) for record in caplog.records if record.name == "ultrafast.content"]


async def test_prompt_and_answer(caplog):
    deltas = [Delta(0, text="a"), Delta(1, reasoning="r"), Delta(0, text="b", tool_calls=(ToolCallDelta(0, arguments="{}"),))]
    with caplog.at_level(logging.INFO, logger="ultrafast.content"):
        assert [event async for event in _logged("id", {"prompts": ["p"]}, events(*deltas))] == deltas
    assert fields(caplog) == [
        ("prompt", {"request_id": "id", "prompts": ["p"]}),
        ("answer", {"request_id": "id", "texts": {0: "ab{}", 1: "r"}}),
    ]
    assert json.dumps(fields(caplog))


async def test_an_abandoned_stream_is_closed_and_logged(caplog):
    inner = events(Delta(0, text="a"), Delta(0, text="b"))
    with caplog.at_level(logging.INFO, logger="ultrafast.content"):
        outer = _logged("id", {}, inner)
        await anext(outer)
        await outer.aclose()
    assert fields(caplog)[-1] == ("answer", {"request_id": "id", "texts": {0: "a"}})
    with pytest.raises(StopAsyncIteration):
        await anext(inner)


async def test_an_error_passes_through(caplog):
    with caplog.at_level(logging.INFO, logger="ultrafast.content"), pytest.raises(RuntimeError, match="x"):
        async for _ in _logged("id", {}, events(Delta(0, text="a"), error=RuntimeError("x"))):
            pass
    assert fields(caplog)[-1] == ("answer", {"request_id": "id", "texts": {0: "a"}})
