"""Chat and text completions through ASGI: bodies, headers, golden streams, what reaches serving."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.component.api.edge import HELLO, client, make
from tests.component.api.fake_service import completed, playing, speaking, started

from ultrafast.bench.wire import read_server_timing
from ultrafast.core.errors import EngineFailedError
from ultrafast.core.tiers import ServiceTier
from ultrafast.serving.contract import ChatCall, ChoiceFinished, Delta, LogprobEntry, Started, ToolCallDelta

GOLDEN = Path(__file__).parent / "golden"
FIRST = Started(ServiceTier.DEFAULT, "default", 7, 3, 0.001, 0.002)
LOGPROBS = (LogprobEntry("Hé", "Hé".encode(), -0.5, (("Hé", "Hé".encode(), -0.5), ("\ufffd", b"\xf0\x9f", float("-inf")))),)
STREAMS = {
    "text": speaking("Hello", ' "wörld"\n', "👋🏽"),
    "empty": playing(FIRST, ChoiceFinished(0, "length"), completed(0)),
    "stop_string": playing(FIRST, Delta(0, "a", num_tokens=1), ChoiceFinished(0, "stop", "###"), completed(1)),
    "reasoning": playing(
        FIRST, Delta(0, reasoning="hm", num_tokens=1), Delta(0, "4", num_tokens=1), ChoiceFinished(0, "stop"), completed(2)
    ),
    "tools": playing(
        FIRST,
        Delta(0, tool_calls=(ToolCallDelta(0, "call_1", "add", '{"a":'),), num_tokens=3),
        Delta(0, tool_calls=(ToolCallDelta(0, arguments="1}"), ToolCallDelta(1, "call_2", "now", "{}")), num_tokens=3),
        ChoiceFinished(0, "tool_calls"),
        completed(6),
    ),
    "logprobs": playing(FIRST, Delta(0, "Hé", logprobs=LOGPROBS, num_tokens=1), ChoiceFinished(0, "stop"), completed(1)),
    "failing": playing(FIRST, Delta(0, "a", num_tokens=1), EngineFailedError("the engine broke", hint="ask less")),
}


def masked(text: str) -> str:
    text = re.sub(r"(chatcmpl|cmpl)-[0-9a-f]{24}", r"\1-ID", text)
    text = re.sub(r'"created":\d+', '"created":0', text)
    text = re.sub(r"dur=\d+\.\d", "dur=T", text)
    return re.sub(r'"system_fingerprint":"[^"]+"', '"system_fingerprint":"FP"', text)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("name", STREAMS)
async def test_stream_is_byte_for_byte_the_golden_one(name: str, path: str) -> None:
    setup = make({"m": STREAMS[name]})
    body: dict[str, Any] = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    body |= {"prompt": "hi"} if path == "/v1/completions" else {"messages": HELLO["messages"]}
    async with client(setup) as http:
        answer = await http.post(path, json=body, headers={"x-request-id": "golden-1"})
    kind = "chat" if "chat" in path else "text"
    expected = (GOLDEN / f"{kind}_{name}.sse").read_text(encoding="utf-8")
    assert masked(answer.text) == expected


def events_of(text: str) -> list[dict[str, Any]]:
    assert text.endswith("data: [DONE]\n\n")
    return [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n")[:-2] if not event.startswith(":")]


async def test_usage_only_when_asked_and_role_with_the_first_token() -> None:
    async with client(make()) as http:
        events = events_of((await http.post("/v1/chat/completions", json={**HELLO, "stream": True})).text)
    assert all("usage" not in event for event in events)
    assert [event["choices"][0]["delta"] for event in events] == [
        {"role": "assistant", "content": ""},
        {"content": "Hello"},
        {"content": " world"},
        {},
    ]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, None, "stop"]
    assert {event["service_tier"] for event in events} == {"default"}


async def test_continuous_usage_counts_up() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with client(make()) as http:
        answer = await http.post("/v1/chat/completions", json={**HELLO, "stream": True, "stream_options": options})
    counts = [event["usage"]["completion_tokens"] for event in events_of(answer.text)]
    assert counts == [1, 1, 2, 2, 2]


async def test_whole_chat_answer_has_openais_shape() -> None:
    async with client(make()) as http:
        answer = await http.post("/v1/chat/completions", json={**HELLO, "n": 2, "service_tier": "fast"})
    body = answer.json()
    assert body.pop("id").startswith("chatcmpl-")
    assert body.pop("created") > 1_700_000_000
    assert body.pop("system_fingerprint").startswith("fp_")
    message = {"role": "assistant", "content": "Hello world", "refusal": None}
    choices = [{"index": i, "message": message, "finish_reason": "stop", "logprobs": None} for i in (0, 1)]
    usage = {"prompt_tokens": 7, "completion_tokens": 4, "total_tokens": 11, "prompt_tokens_details": {"cached_tokens": 3}}
    assert body == {
        "object": "chat.completion",
        "model": "m",
        "choices": choices,
        "usage": usage,
        "service_tier": "priority",
    }
    headers = answer.headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-request-id"].startswith("req_")
    assert headers["x-ultrafast-tier-requested"] == headers["x-ultrafast-tier-served"] == "priority"
    assert headers["x-ultrafast-tier-reason"] == "requested"
    timing = read_server_timing(headers["server-timing"])
    assert timing.keys() == {"network", "queue", "compute", "output", "total", "prefill"}
    parts = [timing[part] for part in ("network", "queue", "compute", "output")]
    assert sum(parts) == pytest.approx(timing["total"], abs=3e-4)
    assert timing["prefill"] == 0.002
    assert headers["openai-processing-ms"].isdigit()


async def test_whole_answers_with_tools_and_logprobs() -> None:
    async with client(make({"t": STREAMS["tools"], "l": STREAMS["logprobs"]})) as http:
        tools = (await http.post("/v1/chat/completions", json={**HELLO, "model": "t"})).json()["choices"][0]
        chat = (await http.post("/v1/chat/completions", json={**HELLO, "model": "l"})).json()["choices"][0]
        text = (await http.post("/v1/completions", json={"model": "l", "prompt": "x"})).json()["choices"][0]
    assert tools["message"]["content"] is None
    assert tools["message"]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}},
        {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
    ]
    entry = chat["logprobs"]["content"][0]
    assert entry["token"] == "Hé"
    assert bytes(entry["bytes"]) == "Hé".encode()
    assert entry["top_logprobs"][1] == {"token": "\ufffd", "logprob": -9999.0, "bytes": [0xF0, 0x9F]}
    assert text["logprobs"] == {
        "tokens": ["Hé"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"Hé": -0.5, "bytes:\\xf0\\x9f": -9999.0}],
        "text_offset": [0],
    }


async def test_everything_a_client_may_say_reaches_serving() -> None:
    setup = make()
    body = HELLO | {
        "max_completion_tokens": 9, "min_tokens": 2, "temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1,
        "frequency_penalty": 1, "presence_penalty": -1, "repetition_penalty": 1.5, "logit_bias": {"5": -100}, "seed": -1,
        "stop": "END", "stop_token_ids": [3], "ignore_eos": True, "n": 2, "logprobs": True, "top_logprobs": 4,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {"type": "object"}}},
        "service_tier": "batch", "cache": "off", "cache_salt": "tenant", "speculation": False, "deterministic": True,
        "user": "u", "metadata": {"a": "b"}, "store": True,
        "chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low", "unknown_field": [1],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"x-extra": 1}}, "extra": 1}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
    }  # fmt: skip
    async with client(setup) as http:
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
    call = setup.service.calls[0]
    assert isinstance(call, ChatCall)
    options = call.options
    assert (options.max_tokens, options.min_tokens, options.temperature, options.top_p) == (9, 2, 0, 0.5)
    assert (options.top_k, options.min_p, options.frequency_penalty, options.presence_penalty) == (0, 0.1, 1, -1)
    assert (options.repeat_penalty, options.logit_bias, options.seed, options.stop) == (1.5, ((5, -100.0),), -1, ("END",))
    assert (options.stop_token_ids, options.ignore_eos, options.num_choices, options.num_logprobs) == ((3,), True, 2, 4)
    assert (options.response_format.kind, options.response_format.schema) == ("json_schema", {"type": "object"})
    assert (options.requested_tier, options.is_cached, options.cache_salt) == (ServiceTier.FLEX, False, "tenant")
    assert not options.may_speculate
    assert options.is_deterministic
    assert call.template_kwargs == {"enable_thinking": False, "reasoning_effort": "low"}
    assert call.tools == body["tools"]
    assert call.tool_choice == "f"


@pytest.mark.parametrize(
    ("body", "headers", "tier"),
    [
        ({}, {}, None),
        ({"service_tier": None}, {}, None),
        ({"service_tier": "auto"}, {}, ServiceTier.DEFAULT),
        ({"service_tier": "standard"}, {}, ServiceTier.DEFAULT),
        ({"service_tier": "default"}, {}, ServiceTier.DEFAULT),
        ({"service_tier": "fast"}, {}, ServiceTier.PRIORITY),
        ({"service_tier": "priority"}, {}, ServiceTier.PRIORITY),
        ({"service_tier": "ultrafast"}, {}, ServiceTier.ULTRAFAST),
        ({"service_tier": "flex"}, {}, ServiceTier.FLEX),
        ({"service_tier": "batch"}, {}, ServiceTier.FLEX),
        ({"mode": "interactive"}, {}, ServiceTier.PRIORITY),
        ({"mode": "interactive"}, {"x-request-priority": "low"}, ServiceTier.FLEX),
        ({"mode": "batch", "service_tier": "ultrafast"}, {"x-request-priority": "low"}, ServiceTier.ULTRAFAST),
    ],
)
async def test_tier_names(body: dict[str, Any], headers: dict[str, str], tier: ServiceTier | None) -> None:
    setup = make()
    async with client(setup) as http:
        answer = await http.post("/v1/chat/completions", json=HELLO | body, headers=headers)
    assert setup.service.calls[0].options.requested_tier is tier
    assert answer.json()["service_tier"] == (tier or ServiceTier.DEFAULT)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
async def test_prompt_shapes(prompt: Any, prompts: list[Any]) -> None:
    setup = make()
    async with client(setup) as http:
        body = (await http.post("/v1/completions", json={"model": "m", "prompt": prompt})).json()
    call = setup.service.calls[0]
    assert call.prompts == prompts  # type: ignore[union-attr]
    assert call.options.max_tokens == 16
    assert [choice["index"] for choice in body["choices"]] == list(range(len(prompts)))
    assert body["object"] == "text_completion"


async def test_models_tokens_and_documents() -> None:
    async with client(make()) as http:
        models = (await http.get("/v1/models")).json()
        assert models["object"] == "list"
        assert models["data"][0]["ultrafast"]["has_flash_attention"] is True
        assert (await http.get("/v1/models/m")).json() == models["data"][0]
        tokens = (await http.post("/tokenize", json={"model": "m", "prompt": "ab", "return_token_strs": True})).json()
        assert tokens == {"count": 3, "max_model_len": 2048, "tokens": [1, 97, 98], "token_strs": ["\x01", "a", "b"]}
        assert (await http.post("/tokenize", json=HELLO)).json()["tokens"] == [1, 0]
        assert (await http.post("/detokenize", json={"tokens": [97]})).json() == {"prompt": "a"}
        api = (await http.get("/openapi.json")).json()
        assert "temperature" in api["components"]["schemas"]["ChatRequest"]["properties"]
        page = await http.get("/docs")
        assert "https://" not in page.text
        assert (await http.get("/")).headers["location"] == "/docs"


async def test_every_route_is_in_the_document() -> None:
    setup = make()
    served = {route.path.replace(":path", "") for route in setup.app._router.routes}  # type: ignore[attr-defined]
    async with client(setup) as http:
        documented = set((await http.get("/openapi.json")).json()["paths"])
    assert served - documented == {"/openapi.json", "/docs", "/"}


async def test_metrics_of_a_call() -> None:
    setup = make()
    async with client(setup) as http:
        await http.post("/v1/chat/completions", json={**HELLO, "stream": True, "service_tier": "flex"})
        text = (await http.get("/metrics")).text
    assert 'ultrafast_requests_total{outcome="completed",tier="flex"} 1.0' in text
    for name in ("ttft", "itl", "tpot", "e2e"):
        assert setup.sample(f"ultrafast_{name}_seconds_count", tier="flex") == 1
    assert setup.sample("ultrafast_output_tokens_total", tier="flex") == 2
    assert setup.sample("ultrafast_requests_in_flight") == 0
    parts = [setup.sample("ultrafast_latency_part_seconds_sum", tier="flex", part=part) for part in PARTS]
    assert sum(parts) == pytest.approx(setup.sample("ultrafast_e2e_seconds_sum", tier="flex"))
    route = "/v1/chat/completions"
    assert setup.sample("ultrafast_http_responses_total", route=route, status_class="2xx") == 1


PARTS = ("network", "queue", "compute", "output")


async def test_started_event_helper_matches_the_call() -> None:
    setup = make({"m": playing(FIRST, Delta(0, "x", num_tokens=1), ChoiceFinished(0, "stop"), completed(1))})
    async with client(setup) as http:
        await http.post("/v1/chat/completions", json=HELLO)
    assert started(setup.service.calls[0]) == FIRST
