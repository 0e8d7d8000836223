"""The body parser: whatever the bytes, a checked struct or a 400; messages are made from the types that are enforced."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ultrafast.api.allowed import allowed_at
from ultrafast.api.chat_fields import ChatRequest
from ultrafast.api.completion_fields import CompletionRequest, DetokenizeRequest, TokenizeRequest, split_prompts
from ultrafast.api.errors import ApiError, describe, error_body
from ultrafast.api.options import generation_options
from ultrafast.api.parse import MAX_CONTAINERS, MAX_DEPTH, is_deeper, parse_body
from ultrafast.api.unsupported import refuse_unsupported

GOOD: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "tokens": [1]}
KINDS = [ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest]

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["user", "text", "auto"])
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4), max_leaves=12
)
FIELDS = sorted({field for kind in KINDS for field in kind.__struct_fields__})


def parse_all(body: bytes, kind: Any) -> ApiError | None:
    try:
        request, plain = parse_body(body, kind)
        refuse_unsupported(plain)
        if isinstance(request, ChatRequest | CompletionRequest):
            generation_options(request, {}, max_num_choices=16, max_tokens=request.max_tokens, num_logprobs=None)
    except ApiError as error:
        return error
    return None


def parse_or_refuse(body: bytes, kind: Any) -> None:
    error = parse_all(body, kind)
    if error is not None:
        assert error.status == 400
        assert json.loads(error_body(error, "id"))["error"]["message"]


LONG = "7" * 5000
"""More than any parser makes an integer of."""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (LONG, math.inf),
        (f"-{LONG}", -math.inf),
        (f"[1,-{LONG},{LONG} ,2.5]", [1, -math.inf, math.inf, 2.5]),
        (f"1.{LONG}", float(f"1.{LONG}")),
        (f"{LONG}e-5000", float(f"{LONG}e-5000")),
        (f"{LONG}.5E-5000", float(f"{LONG}.5E-5000")),
        (f"1e-{LONG}", 0.0),
        (f"1e+{LONG}", math.inf),
        (f'"{LONG}"', LONG),
        (f'["\\"{LONG}",{LONG}]', [f'"{LONG}', math.inf]),
        (f'["\\\\",{LONG},"\\\\\\"{LONG}"]', ["\\", math.inf, f'\\"{LONG}']),
        (f'{{"{LONG}":{LONG}}}', {LONG: math.inf}),
    ],
)
def test_long_numbers_are_read_as_what_they_are_and_strings_stay(text: str, value: Any) -> None:
    """Beside an integer beyond any range, so that the slow way is taken."""
    body = '{"model":"m","prompt":"x","other":' + text + f',"more":{LONG}}}'
    _, plain = parse_body(body.encode(), CompletionRequest)
    assert plain["other"] == value
    assert plain["more"] == math.inf


@pytest.mark.parametrize("text", [LONG + "x", "0" * 5000, f"+{LONG}", f"{LONG}-1", f'"{LONG}'])
def test_a_long_number_that_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_body(('{"model":"m","prompt":"x","other":' + text + "}").encode(), CompletionRequest)
    assert caught.value.code == "invalid_json"


def test_a_million_numbers_beside_one_beyond_any_range_need_no_python_code_each() -> None:
    body = b'{"model":"m","prompt":"x","other":[' + b"1," * 100_000 + b"1e999]}"
    num_calls = 0

    def count(*_: Any) -> None:
        nonlocal num_calls
        num_calls += 1

    sys.setprofile(count)
    try:
        parse_body(body, CompletionRequest)
    finally:
        sys.setprofile(None)
    assert num_calls < 1000


def test_the_number_of_lists_and_objects_is_bounded_and_brackets_in_texts_are_none() -> None:
    def body(other: str) -> bytes:
        return ('{"model":"m","prompt":"x","other":' + other + "}").encode()

    half = MAX_CONTAINERS // 2
    for many in (
        "[" + "[]," * MAX_CONTAINERS + "1]",
        "[" + '{"a":[]},' * half + "1]",
        '["' + '\\"' * MAX_CONTAINERS + "[" * MAX_CONTAINERS,
    ):
        with pytest.raises(ApiError) as caught:
            parse_body(body(many), CompletionRequest)
        assert caught.value.code == "invalid_json"
    for few in ("[" + "[]," * half + "1]", '"' + '{\\"[' * MAX_CONTAINERS + '"'):
        parse_body(body(few), CompletionRequest)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KINDS), st.binary(max_size=200))
def test_any_bytes(kind: Any, body: bytes) -> None:
    parse_or_refuse(body, kind)


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(FIELDS), values, max_size=5))
def test_any_values_in_known_fields(kind: Any, change: dict[str, Any]) -> None:
    parse_or_refuse(json.dumps(GOOD | change).encode(), kind)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KINDS), st.data())
def test_good_bodies_with_damage(kind: Any, data: st.DataObject) -> None:
    body = bytearray(json.dumps(GOOD).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body) - 1))
        body[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        if not body:
            break
    parse_or_refuse(bytes(body), kind)


@settings(max_examples=100, deadline=None)
@given(st.lists(values, max_size=3), st.lists(values, max_size=3))
def test_any_messages_and_tools(messages: list[Any], tools: list[Any]) -> None:
    parse_or_refuse(json.dumps({**GOOD, "messages": messages, "tools": tools}).encode(), ChatRequest)


def test_what_the_client_wrote_is_kept() -> None:
    body = json.dumps({**GOOD, "messages": [{"role": "user", "content": "x", "name": "n", "vendor": {"a": 1}}]}).encode()
    request, plain = parse_body(body, ChatRequest)
    assert plain["messages"] == [{"role": "user", "content": "x", "name": "n", "vendor": {"a": 1}}]
    assert request.model == "m"


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(("depth", "is_too_deep"), [(0, False), (MAX_DEPTH, False), (MAX_DEPTH + 1, True), (900, True)])
def test_depth(depth: int, is_too_deep: bool) -> None:
    assert is_deeper(nested(depth), MAX_DEPTH) is is_too_deep
    assert is_deeper({"a": [nested(depth)], "b": {}}, MAX_DEPTH + 2) is is_too_deep


def test_brackets_in_text_are_no_depth() -> None:
    body = json.dumps({**GOOD, "messages": [{"role": "user", "content": "[{" * 1000}]}).encode()
    assert parse_body(body, ChatRequest)[0].model == "m"


@pytest.mark.parametrize(
    ("kind", "steps", "words"),
    [
        (ChatRequest, ["temperature"], "a number at least 0 and at most 2 or null"),
        (ChatRequest, ["stop", "0"], "a string of 1 to 256 characters"),
        (ChatRequest, ["logprobs"], "true or false or null"),
        (ChatRequest, ["logit_bias", "..."], "a number"),
        (ChatRequest, ["response_format", "type"], '"text" or "json_object" or "json_schema"'),
        (ChatRequest, ["nowhere"], None),
        (ChatRequest, ["model", "deeper"], None),
    ],
)
def test_allowed_in_words(kind: Any, steps: list[str], words: str | None) -> None:
    text = allowed_at(kind, steps)
    assert text is None if words is None else set((text or "").split(" or ")) == set(words.split(" or "))


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), ([1], [[1]]), (["a"], ["a"]), ([[1]], [[1]]), ([1, "a"], None), ([[1], 1], None), (["a"] * 129, None)],
)
def test_split_prompts(prompt: Any, prompts: Any) -> None:
    assert split_prompts(prompt) == prompts


def test_describe_never_fails_and_is_short() -> None:
    for value in ("x" * 1000, "\ud800", nested(5000), float("nan"), 2**2000, object()):
        assert len(describe(value)) <= 60


@pytest.mark.parametrize(
    "body",
    [rb'{"a":"\ud800"}', rb'{"messages":[{"content":"\uD9AB"}]}', rb'{"a":"\ud800 in the middle"}', rb'{"a":"\udc00", "b":1}'],
)
def test_half_of_a_character_is_called_that_wherever_it_stands(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_body(body, ChatRequest)
    assert "surrogate pair" in caught.value.message
    assert "truncated" not in caught.value.message


def test_a_body_that_was_cut_off_is_called_that() -> None:
    with pytest.raises(ApiError, match="truncated"):
        parse_body(rb'{"a":"\\ud800', ChatRequest)
