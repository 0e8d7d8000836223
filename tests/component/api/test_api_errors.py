"""Every status of the table, in OpenAI's shape, with what a client needs to act."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from typing import Any, Literal

import httpx
import pytest
from tests.component.api.edge import HELLO, client, make
from tests.component.api.fake_service import PLACED, failing, health, playing

from ultrafast.api.auth import ApiKeys
from ultrafast.api.completion_fields import MAX_DETOKENIZE_TOKENS
from ultrafast.core.errors import (
    ContextLengthError,
    EngineFailedError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    UltrafastError,
    UnavailableError,
)
from ultrafast.engine.health import EngineState
from ultrafast.observe.logs import set_up_logging

CHAT = "/v1/chat/completions"


async def post(body: Any = HELLO, path: str = CHAT, **options: Any) -> httpx.Response:
    setup = options.pop("setup", None) or make()
    async with client(setup) as http:
        if isinstance(body, bytes):
            headers = {"content-type": "application/json"} | options.pop("headers", {})
            return await http.post(path, content=body, headers=headers, **options)
        return await http.post(path, json=body, **options)


def error_of(answer: httpx.Response, status: int, code: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert isinstance(error, dict)
    assert (error["type"], error["code"]) == (kind, code)
    assert error["request_id"] == answer.headers["x-request-id"]
    assert answer.headers["openai-processing-ms"].isdigit()
    assert answer.headers["cache-control"] == "no-store"
    assert error["message"]
    return error


FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"model": None}, "model", "a string of 1 to 512 characters, got null"),
    ({"messages": []}, "messages", "a list of 1 to 10000 items"),
    ({"messages": "hi"}, "messages", 'got "hi"'),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", 'got "robot"'),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "is required"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "is required"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "got null"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type", 'got "image_url"'),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages[0].content[0].text", "got 5"),
    ({"temperature": 2.1}, "temperature", "a number at least 0 and at most 2 or null, got 2.1"),
    ({"temperature": "hot"}, "temperature", 'a number at least 0 and at most 2 or null, got "hot"'),
    ({"temperature": True}, "temperature", "got true"),
    ({"top_p": 0}, "top_p", "a number above 0 and at most 1 or null, got 0"),
    ({"top_k": -2}, "top_k", "an integer at least -1"),
    ({"min_p": 1.1}, "min_p", "at most 1"),
    ({"frequency_penalty": -2.5}, "frequency_penalty", "at least -2"),
    ({"presence_penalty": 3}, "presence_penalty", "at most 2"),
    ({"repeat_penalty": 0}, "repeat_penalty", "at least 0.01 and at most 10"),
    ({"repetition_penalty": 1e-300}, "repetition_penalty", "at least 0.01"),
    ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repetition_penalty", "one parameter"),
    ({"max_tokens": 0}, "max_tokens", "an integer at least 1"),
    ({"max_tokens": 1.5}, "max_tokens", "got 1.5"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "contradicts"),
    ({"max_tokens": 5, "min_tokens": 6}, "min_tokens", "at most max_tokens (5), got 6"),
    ({"seed": 2**63}, "seed", f"an integer at least {-(2**63)} and at most {2**63 - 1} or null, got {2**63}"),
    ({"max_tokens": 2**31}, "max_tokens", "an integer at least 1 and at most 2147483647 or null, got 2147483648"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "an object of at most 1024 entries or null"),
    ({"messages": [{"role": "tool", "content": "4"}]}, "messages[0].tool_call_id", "is required"),
    ({"messages": [{"role": "tool", "content": "4", "tool_call_id": None}]}, "messages[0].tool_call_id", "a string, got null"),
    ({"n": 0}, "n", "an integer at least 1 and at most 16, got 0"),
    ({"n": -1}, "n", "an integer at least 1 and at most 16, got -1"),
    ({"n": "two"}, "n", 'an integer or null, got "two"'),
    ({"n": 17}, "n", "at most 16, got 17"),
    ({"stop": ""}, "stop", 'got ""'),
    ({"stop": ["x"] * 17}, "stop", "a list of at most 16 items"),
    ({"stop": ["x", "y" * 257]}, "stop[1]", "a string of 1 to 256 characters"),
    ({"stop": [None]}, "stop[0]", "got null"),
    ({"logit_bias": {"a": 1}}, "logit_bias.a", "token ids"),
    ({"logit_bias": {"-1": 1}}, "logit_bias.-1", "token ids"),
    ({"logit_bias": {"1": 1, "01": 1}}, "logit_bias.01", "token ids"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1", "from -100 to 100, got 101"),
    ({"logprobs": 3}, "logprobs", "true or false or null, got 3"),
    ({"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "at most 20"),
    ({"stream": "yes"}, "stream", 'got "yes"'),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
    ({"response_format": {"type": "xml"}}, "response_format.type", '"json_object"'),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is required"),
    ({"service_tier": "gold"}, "service_tier", '"ultrafast"'),
    ({"service_tier": "ULTRAFAST"}, "service_tier", 'got "ULTRAFAST"'),
    ({"mode": "fun"}, "mode", '"interactive"'),
    ({"cache": "maybe"}, "cache", '"off"'),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "is required"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", 'got "a b"'),
    ({"tool_choice": "maybe"}, "tool_choice", 'got "maybe"'),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "not among the tools"),
    ({"chat_template_kwargs": [1]}, "chat_template_kwargs", "an object or null, got [1]"),
]


@pytest.mark.parametrize(("change", "param", "text"), FIELDS)
async def test_wrong_field_names_path_range_and_value(change: dict[str, Any], param: str, text: str) -> None:
    answer = await post(HELLO | change)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert text in error["message"]


UNSUPPORTED: list[tuple[str, Any, Any]] = [
    ("audio", {"voice": "x"}, None),
    ("modalities", ["text", "audio"], ["text"]),
    ("suffix", "x", ""),
    ("functions", [{"name": "f"}], []),
    ("best_of", 2, 1),
    ("use_beam_search", True, False),
    ("parallel_tool_calls", False, True),
    ("guided_json", {}, None),
    ("priority", 5, 0),
    ("truncate_prompt_tokens", 5, None),
    ("mirostat", False, 0),
]


@pytest.mark.parametrize(("name", "asking", "neutral"), UNSUPPORTED)
async def test_known_parameters_that_we_lack_are_never_ignored(name: str, asking: Any, neutral: Any) -> None:
    error = error_of(await post(HELLO | {name: asking}), 400, "unsupported_parameter")
    assert error["param"] == name
    assert error["hint"]
    assert (await post(HELLO | {name: neutral})).status_code == 200


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [[1], "a"]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": [[1]] * 129}, "prompt"),
        ({"prompt": ["a"] * 100, "n": 2}, "n"),
        ({"prompt": None}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"echo": True, "logprobs": 1}, "logprobs"),
        ({"best_of": 2}, "best_of"),
    ],
)
async def test_wrong_completion_fields(change: dict[str, Any], param: str) -> None:
    error = (await post({"model": "m", "prompt": "x"} | change, "/v1/completions")).json()["error"]
    assert error["param"] == param


async def test_more_token_ids_than_any_text_has_are_refused() -> None:
    error = (await post({"tokens": [1] * (MAX_DETOKENIZE_TOKENS + 1)}, "/detokenize")).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "tokens")
    assert str(MAX_DETOKENIZE_TOKENS) in error["message"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "empty_body"),
        (b"  ", "empty_body"),
        (b"{", "invalid_json"),
        (b"{} x", "invalid_json"),
        (b"nul", "invalid_json"),
        (b"null", "invalid_type"),
        (b"[1]", "invalid_type"),
        (b'{"model":"m","temperature":NaN}', "invalid_json"),
        (b'{"model":"m","temperature":Infinity}', "invalid_json"),
        (b'{"model":"\xff"}', "invalid_json"),
        (b'{"model":"\\ud800","messages":[]}', "invalid_json"),
        (b'{"model":"a\x00b"}', "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"a":' * 50_000, "invalid_json"),
        (b'{"model":"m","x":' + b"[" * 200 + b"]" * 200 + b"}", "invalid_json"),
        (b"\xef\xbb\xbf{}", "invalid_json"),
    ],
)
async def test_bodies_that_are_no_json_object(body: bytes, code: str) -> None:
    error_of(await post(body), 400, code)


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"1" * 400, b"1" * 5000, b"-" + b"9" * 30])
async def test_numbers_beyond_any_range(number: bytes) -> None:
    answer = await post(b'{"model":"m","messages":[{"role":"user","content":"x"}],"seed":' + number + b"}")
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "seed")
    assert "seed must be an integer at least " in error["message"]


@pytest.mark.parametrize("number", [b"1e400", b"-1e400", b"1" * 400, b"-" + b"1" * 5000])
async def test_a_number_beyond_any_range_in_an_unknown_field_is_ignored_like_the_field(number: bytes) -> None:
    hello = b'"model":"m","messages":[{"role":"user","content":"x","weight":' + number + b"}]"
    for field in (b'"foo":' + number, b'"foo":{"deep":[' + number + b"]}"):
        assert (await post(b"{" + field + b"," + hello + b"}")).status_code == 200
    for bad, param in (
        (b'"seed":"x"', "seed"),
        (b'"typical_p":1e400', "typical_p"),
        (b'"logit_bias":{"1":1e999}', "logit_bias[...]"),
    ):
        error = (await post(b'{"foo":' + number + b"," + hello + b"," + bad + b"}")).json()["error"]
        assert error["param"] == param
    for bad in (b'"bar":NaN', b'"bar":"\\ud800"', b'"bar":"\x01"', b'"bar":' + b"[" * 200 + b"]" * 200, b'"bar"', b'"bar":1} x'):
        error_of(await post(b'{"foo":' + number + b"," + hello + b"," + bad + b"}"), 400, "invalid_json")


@pytest.mark.parametrize("where", ["response_format", "tools", "chat_template_kwargs"])
async def test_a_number_beyond_any_range_where_any_value_may_stand(where: str) -> None:
    fields = {
        "response_format": b'{"type":"json_schema","json_schema":{"schema":{"maximum":1e400}}}',
        "tools": b'[{"type":"function","function":{"name":"f","parameters":{"maximum":1e400}}}]',
        "chat_template_kwargs": b'{"x":1e400}',
    }
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"' + where.encode() + b'":' + fields[where] + b"}"
    error = error_of(await post(body), 400, "invalid_value")
    assert error["param"].startswith(where)
    assert "a number within the range of a float, got a number out of range" in error["message"]


async def test_nul_characters_and_duplicate_keys_are_json() -> None:
    setup = make()
    body = b'{"model":"x","model":"m","messages":[{"role":"user","content":"a\\u0000b"}]}'
    assert (await post(body, setup=setup)).status_code == 200
    assert setup.service.calls[0].messages[0]["content"] == "a\0b"  # type: ignore[union-attr]


RAISED: list[tuple[UltrafastError, int, str, str]] = [
    (InvalidRequestError("bad", param="x"), 400, "invalid_value", "invalid_request_error"),
    (ContextLengthError("long"), 400, "context_length_exceeded", "invalid_request_error"),
    (ModelNotFoundError("no"), 404, "model_not_found", "invalid_request_error"),
    (UltrafastError("no", code="sla_unavailable"), 422, "sla_unavailable", "invalid_request_error"),
    (InvalidRequestError("stuck", code="output_stuck"), 422, "output_stuck", "invalid_request_error"),
    (OverloadedError("busy", retry_after_s=1.5), 429, "slow_down", "rate_limit_error"),
    (EngineFailedError("broke"), 500, "engine_failed", "server_error"),
    (UnavailableError("down", retry_after_s=3), 503, "server_is_overloaded", "service_unavailable_error"),
]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("error", "status", "code", "kind"), RAISED)
async def test_errors_of_serving_before_the_first_token(
    error: UltrafastError, status: int, code: str, kind: str, is_stream: bool
) -> None:
    setup = make({"m": playing(error)})
    error_of(await post({**HELLO, "stream": is_stream}, setup=setup), status, code, kind)
    assert setup.sample("ultrafast_requests_in_flight") == 0


@pytest.mark.parametrize(("wait_s", "seconds", "ms"), [(0.0, "1", "1"), (1.5, "2", "1500"), (119.2, "120", "119200")])
async def test_retry_hints(wait_s: float, seconds: str, ms: str) -> None:
    answer = await post(setup=make({"m": playing(OverloadedError("busy", retry_after_s=wait_s))}))
    assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == (seconds, ms)
    assert answer.json()["error"]["estimated_recovery_ms"] == wait_s * 1000
    assert "x-should-retry" not in answer.headers


@pytest.mark.parametrize("error", [OverloadedError("busy", retry_after_s=500), EngineFailedError("x")])
async def test_retrying_in_vain_is_told(error: UltrafastError) -> None:
    answer = await post(setup=make({"m": playing(error)}))
    assert answer.headers["x-should-retry"] == "false"
    assert answer.headers.get("retry-after", "120") == "120"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_bug_is_a_500_without_its_text(is_stream: bool) -> None:
    answer = await post({**HELLO, "stream": is_stream}, setup=make({"m": playing(ZeroDivisionError("secret"))}))
    error_of(answer, 500, "internal_error", "server_error")
    assert "secret" not in answer.text


LOG_SECRET = "what the client wrote"


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("after", [0, 1], ids=["before_first_token", "mid_answer"])
@pytest.mark.parametrize("error", [ZeroDivisionError(LOG_SECRET), EngineFailedError(LOG_SECRET)], ids=["bug", "engine"])
async def test_what_is_our_fault_is_logged_as_an_error_without_any_text_of_the_client(
    error: Exception, after: int, is_stream: bool, log_format: Literal["text", "json"]
) -> None:
    log = io.StringIO()
    set_up_logging("error", log_format, log)
    try:
        answer = await post({**HELLO, "stream": is_stream}, setup=make({"m": failing(error, after)}))
        ok = await post()
    finally:
        set_up_logging("info")
    assert ok.status_code == 200
    text = log.getvalue()
    assert LOG_SECRET not in text
    lines = text.splitlines()
    assert len(lines) == (2 if isinstance(error, ZeroDivisionError) else 1), text
    for line in lines:
        assert type(error).__name__ in line
        assert answer.headers["x-request-id"] in line
        assert "error" in line
    if isinstance(error, ZeroDivisionError):
        assert "fake_service.py:" in lines[0]


@pytest.mark.parametrize("error", [InvalidRequestError("x"), OverloadedError("x"), UnavailableError("x")])
async def test_what_is_not_our_fault_is_no_error_in_the_log(error: UltrafastError) -> None:
    log = io.StringIO()
    set_up_logging("error", "text", log)
    try:
        await post(setup=make({"m": playing(error)}))
    finally:
        set_up_logging("info")
    assert log.getvalue() == ""


_PLAIN = 'messages[0].content must be a string or a list of (an object with type "text"), got '
_PART = 'messages[0].content[0].type must be "text", got "image_url".'


@pytest.mark.parametrize("role", ["system", "developer", "user", "tool"])
@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
@pytest.mark.parametrize(
    ("content", "message"),
    [(None, f"{_PLAIN}null."), (5, f"{_PLAIN}5."), ([{"type": "image_url", "image_url": {"url": "x"}}], _PART)],
)
async def test_a_message_is_told_the_rules_of_its_own_role(role: str, path: str, content: object, message: str) -> None:
    """An assistant's content may be null, and may have refusals among its parts; nobody else's may."""
    given = {"role": role, "content": content, "tool_call_id": "x"}
    error = (await post({"model": "m", "messages": [given]}, path)).json()["error"]
    assert error["message"] == message


async def test_an_assistant_is_told_its_own_rules_too() -> None:
    parts = [{"type": "image_url"}]
    error = (await post({"model": "m", "messages": [{"role": "assistant", "content": parts}]})).json()["error"]
    assert error["message"] == 'messages[0].content[0].type must be "text" or "refusal", got "image_url".'


@pytest.mark.parametrize(
    ("prompt", "end"),
    [
        (["a"] * 129, "at most 128 texts or lists of token ids, all alike, got 129 entries."),
        ([[1]] * 200, "all alike, got 200 entries."),
        (["a", 1], "all alike, got 2 entries of different kinds."),
        (["a", *[[1]] * 128], "all alike, got 129 entries of different kinds."),
    ],
)
async def test_a_list_of_prompts_that_is_refused_is_counted(prompt: list[object], end: str) -> None:
    error = (await post({"model": "m", "prompt": prompt}, "/v1/completions")).json()["error"]
    assert error["message"].endswith(end)


async def test_unknown_paths_methods_and_models() -> None:
    async with client(make()) as http:
        error_of(await http.get("/v2/nope"), 404, "unknown_url")
        error_of(await http.get("/v1/models/"), 404, "model_not_found")
        error_of(await http.get("/v1/models/a/b"), 404, "model_not_found")
        wrong = await http.get(CHAT)
        error_of(wrong, 405, "method_not_allowed")
        assert wrong.headers["allow"] == "POST"
        error_of(await http.post(CHAT, json={**HELLO, "model": "x"}), 404, "model_not_found")


async def test_keys() -> None:
    setup = make(keys=ApiKeys([("alice", "key-of-alice"), ("bob", "key-of-bob")]))
    async with client(setup) as http:
        missing = await http.post(CHAT, json=HELLO)
        error_of(missing, 401, "missing_api_key")
        assert missing.headers["www-authenticate"] == "Bearer"
        for value in ("Bearer nope", "Bearer key-of-alic", "Bearer ", "Basic key-of-alice", "key-of-alice", "Bearer \xff"):
            wrong = await http.post(CHAT, json=HELLO, headers=[(b"authorization", value.encode("latin-1"))])
            assert wrong.status_code == 401
            assert "key-of" not in wrong.text
        for key in ("Bearer key-of-alice", "bearer key-of-bob"):
            assert (await http.post(CHAT, json=HELLO, headers={"authorization": key})).status_code == 200
        assert (await http.get("/v1/models")).status_code == 401
        assert (await http.get("/metrics")).status_code == 401
        for path in ("/health/live", "/health/ready", "/docs", "/openapi.json"):
            assert (await http.get(path)).status_code == 200
    async with client(make(keys=ApiKeys([("a", "key-of-a")]), is_metrics_open=True)) as http:
        assert (await http.get("/metrics")).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "application/json; charset=latin-1"}, 415),
        ({"content-encoding": "gzip"}, 415),
        ({"content-type": "application/json; charset=UTF-8"}, 200),
        ({"content-type": "application/vnd.x+json"}, 200),
        ({"content-type": ""}, 200),
    ],
)
async def test_media_types(headers: dict[str, str], status: int) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}]}'
    assert (await post(body, headers=headers)).status_code == status


async def in_pieces(num_bytes: int) -> AsyncIterator[bytes]:
    for _ in range(num_bytes // 1000):
        yield b" " * 1000


async def test_large_bodies_declared_and_chunked() -> None:
    setup = make(max_body_bytes=2048)
    async with client(setup) as http:
        json = {"content-type": "application/json"}
        declared = await http.post(CHAT, content=b" " * 2049, headers=json)
        error_of(declared, 413, "body_too_large")
        assert declared.headers["connection"] == "close"
        error_of(await http.post(CHAT, content=in_pieces(5000), headers=json), 413, "body_too_large")
        assert (await http.post(CHAT, json=HELLO)).status_code == 200


async def test_request_ids() -> None:
    """Printable ASCII of a sane length is the client's; anything else is replaced, and the answer names the id."""
    printable = "".join(map(chr, range(32, 127))).strip()
    for good in ("abc-1.2_3:4", "-1", "a b", "<id>", "x" * 128, printable):
        answer = await post(b"{", headers={"x-request-id": good})
        assert answer.headers["x-request-id"] == answer.json()["error"]["request_id"] == good
    for bad in ("", "x" * 129, "a\tb", "caf\u00e9".encode(), b"\xe9", b"a\x7f"):
        assert (await post(headers={"x-request-id": bad})).headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("value", ["caf\u00e9".encode(), "caf\u00e9".encode("latin-1")], ids=["utf-8", "latin-1"])
@pytest.mark.parametrize("name", ["x-slo-ttft-ms", "x-slo-strict", "x-queue-ttl-ms", "x-request-priority", "content-type"])
async def test_a_header_is_shown_as_it_was_meant(name: str, value: bytes) -> None:
    answer = await post(headers={name: value})
    assert answer.status_code in (400, 415)
    assert "'caf\u00e9'" in answer.json()["error"]["message"]


CASES: list[tuple[dict[str, Any], dict[str, str], str]] = [
    ({"service_tier": "Priority"}, {}, "priority"),
    ({"service_tier": "FLEX"}, {}, "flex"),
    ({"mode": "Batch"}, {}, "batch"),
    ({"cache": "OFF"}, {}, "off"),
    ({"reasoning_effort": "High"}, {}, "high"),
    ({"tool_choice": "Auto"}, {}, "auto"),
    ({"messages": [{"role": "User", "content": "hi"}]}, {}, "user"),
    ({"response_format": {"type": "Text"}}, {}, "text"),
    ({}, {"x-request-priority": "Priority"}, "priority"),
    ({}, {"x-request-priority": "LOW"}, "low"),
    ({}, {"x-slo-strict": "True"}, "true"),
]


@pytest.mark.parametrize(("change", "headers", "right"), CASES)
async def test_another_case_is_refused_with_the_right_spelling(
    change: dict[str, Any], headers: dict[str, str], right: str
) -> None:
    answer = await post(HELLO | change, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["hint"] == f"values are written in lower case: {right}"


async def test_another_value_gets_no_such_hint() -> None:
    for change, headers in (({"service_tier": "Gold"}, {}), ({}, {"x-request-priority": "Gold"})):
        answer = await post(HELLO | change, headers=headers)
        assert answer.status_code == 400
        assert "hint" not in answer.json()["error"]


@pytest.mark.parametrize(
    ("engine", "status", "reason"),
    [
        (health(EngineState.READY), 200, "ready"),
        (health(EngineState.READY, is_stalled=True), 503, "stalled"),
        (health(EngineState.STARTING), 503, "starting"),
        (health(EngineState.RESTARTING), 503, "restarting"),
        (health(EngineState.FAILED), 503, "failed"),
    ],
)
async def test_readiness(engine: Any, status: int, reason: str) -> None:
    async with client(make(engine_health=lambda: engine)) as http:
        answer = await http.get("/health/ready")
        assert (answer.status_code, answer.json()["reason"]) == (status, reason)
        assert ("retry-after" in answer.headers) == ("retry-after-ms" in answer.headers) == (status == 503)
        assert bool(answer.json()["hint"]) == (status == 503)
        assert (await http.get("/health/live")).status_code == 200


@pytest.mark.parametrize(
    ("state", "code"),
    [(EngineState.STARTING, "model_loading"), (EngineState.FAILED, "engine_stopped"), (EngineState.STOPPED, "engine_stopped")],
)
async def test_without_an_engine_everything_that_needs_one_is_503(state: EngineState, code: str) -> None:
    setup = make(engine_health=lambda: health(state))
    async with client(setup) as http:
        for answer in (await http.post(CHAT, json=HELLO), await http.get("/v1/models"), await http.post("/tokenize", json={})):
            error_of(answer, 503, code, "service_unavailable_error")
            assert "retry-after" in answer.headers
        for path in ("/health/live", "/metrics", "/docs"):
            assert (await http.get(path)).status_code == 200


async def test_a_restarting_engine_is_waited_for() -> None:
    assert (await post(setup=make(engine_health=lambda: health(EngineState.RESTARTING)))).status_code == 200


async def test_draining_refuses_and_says_so() -> None:
    setup = make()
    setup.lifecycle.begin_drain()
    async with client(setup) as http:
        for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [97]})):
            error_of(await http.post(path, json=body), 503, "shutting_down", "service_unavailable_error")
        error_of(await http.post(CHAT, json=HELLO), 503, "shutting_down", "service_unavailable_error")
        ready = await http.get("/health/ready")
        assert (ready.status_code, ready.json()["reason"]) == (503, "draining")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("error", [UnavailableError("cut", code="shutting_down"), InvalidRequestError("x", code="output_stuck")])
@pytest.mark.parametrize("after", ["nothing", "place", "token"])
async def test_what_breaks_off_in_the_engine_has_failed_and_was_not_refused(
    after: str, error: UltrafastError, is_stream: bool
) -> None:
    script = {"nothing": playing(error), "place": playing(PLACED, error), "token": failing(error, 1)}[after]
    setup = make({"m": script})
    await post({**HELLO, "stream": is_stream}, setup=setup)
    assert setup.sample("ultrafast_requests_total", tier="default", outcome="failed") == (after != "nothing")


async def test_rejections_and_failures_are_counted() -> None:
    setup = make({"b": playing(OverloadedError("x")), "e": playing(OverloadedError("x", code="queue_timeout"))})
    setup.service.scripts["f"] = playing(EngineFailedError("x"))
    async with client(setup) as http:
        for model in ("b", "e", "f", "unknown"):
            await http.post(CHAT, json={**HELLO, "model": model})
    outcomes = {"rejected": 1, "invalid": 1, "expired": 1, "failed": 1, "completed": 0}
    for outcome, count in outcomes.items():
        assert setup.sample("ultrafast_requests_total", tier="default", outcome=outcome) == count
