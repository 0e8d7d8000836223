"""Prefabricated chunks say the same as chunks encoded as a whole would."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.api.chunks import ChatChunks, CompletionChunks, StreamFacts
from ultrafast.serving.contract import ChoiceFinished, Delta, LogprobEntry, Usage


def facts(**changes: Any) -> StreamFacts:
    values: dict[str, Any] = {
        "completion_id": "id", "created": 5, "model": 'm"\n', "service_tier": "flex", "system_fingerprint": "fp",
        "num_prompt_tokens": 3, "num_cached_tokens": 1,
    }  # fmt: skip
    return StreamFacts(**(values | changes))


def parsed(data: bytes) -> list[dict[str, Any]]:
    text = data.decode()
    assert text == "" or text.endswith("\n\n")
    events = text.split("\n\n")[:-1]
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


@given(st.text(), st.integers(0, 200))
def test_any_text_is_one_line_of_json(text: str, index: int) -> None:
    chat = parsed(ChatChunks(facts()).delta(Delta(index, text, num_tokens=1)))
    assert chat[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chat[-1]["choices"][0]["index"] == index
    assert chat[-1]["choices"][0]["delta"].get("content") == text
    plain = parsed(CompletionChunks(facts()).delta(Delta(index, text, num_tokens=1)))
    assert [event["choices"][0]["text"] for event in plain] == ([text] if text else [])
    assert chat[0] | {"choices": None, "object": None} == {
        "id": "id", "object": None, "created": 5, "model": 'm"\n', "service_tier": "flex", "system_fingerprint": "fp",
        "choices": None,
    }  # fmt: skip


@pytest.mark.parametrize("kind", [ChatChunks, CompletionChunks])
def test_usage_forms(kind: Any) -> None:
    usage = Usage(3, 2, 1)
    assert kind(facts()).usage(usage) == b""
    asked = kind(facts(has_usage=True))
    assert parsed(asked.delta(Delta(0, "a", num_tokens=1)))[-1]["usage"] is None
    (last,) = parsed(asked.usage(usage))
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1},
    }  # fmt: skip
    continuous = kind(facts(has_usage=True, has_continuous_usage=True))
    continuous.delta(Delta(0, "a", num_tokens=2))
    assert parsed(continuous.delta(Delta(0, "b", num_tokens=3)))[-1]["usage"]["completion_tokens"] == 5
    assert parsed(continuous.finish(ChoiceFinished(0, "stop")))[-1]["usage"]["completion_tokens"] == 5


def test_text_without_output_still_opens_a_chat_choice() -> None:
    chunks = ChatChunks(facts())
    assert [event["choices"][0]["delta"] for event in parsed(chunks.delta(Delta(0, "", num_tokens=1)))] == [
        {"role": "assistant", "content": ""}
    ]
    assert parsed(chunks.finish(ChoiceFinished(0, "stop")))[0]["choices"][0]["finish_reason"] == "stop"


def test_offsets_of_a_streamed_completion_go_on() -> None:
    chunks = CompletionChunks(facts())
    chunks.delta(Delta(0, "abc", num_tokens=1))
    entry = LogprobEntry("de", b"de", -1.0)
    (first,) = parsed(chunks.delta(Delta(0, "de", logprobs=(entry,), num_tokens=1)))
    (second,) = parsed(chunks.delta(Delta(0, "de", logprobs=(entry,), num_tokens=1)))
    assert first["choices"][0]["logprobs"]["text_offset"] == [3]
    assert second["choices"][0]["logprobs"]["text_offset"] == [5]
