"""The limits that docs/api.md names are those of the code."""

from __future__ import annotations

import msgspec
import pytest
from tests.docs.documents import ROOT

from ultrafast.api import completion_fields, fields, options, parse, protocol
from ultrafast.api.chat_fields import ChatRequest
from ultrafast.api.errors import MAX_RETRY_AFTER_S
from ultrafast.api.generations import DEFAULT_COMPLETION_TOKENS
from ultrafast.engine.llama import special_texts
from ultrafast.serving import service, structured

LIMITS = {
    "`POST /v1/completions`": f"at most {fields.MAX_PROMPTS} answers",
    "`POST /tokenize`": f"at most {service.MAX_TOKENIZE_CHARS} characters, and at most {special_texts.MAX_UNCUT} special tokens",
    "`POST /detokenize`": f"at most {completion_fields.MAX_DETOKENIZE_TOKENS}",
    "its JSON": f"at most {parse.MAX_DEPTH} levels deep and has at most {parse.MAX_CONTAINERS} lists and objects",
    "`messages`": f"1 to {fields.MAX_MESSAGES}",
    "`max_completion_tokens`, `max_tokens`": f"default to {DEFAULT_COMPLETION_TOKENS}",
    "`stop`": f"up to {fields.MAX_STOPS}, 1 to {fields.MAX_STOP_CHARS} characters",
    "`logit_bias`": f"[-{fields.MAX_BIAS}, {fields.MAX_BIAS}]",
    "`logprobs`, `top_logprobs`": f"0 to {fields.MAX_LOGPROBS}; completions: `logprobs` 0 to {fields.MAX_LOGPROBS}",
    "`response_format`": f"at most {structured.MAX_SCHEMA_CHARS} characters and about {structured.MAX_KEYS} keys",
    "`x-slo-ttft-ms`, `x-slo-tpot-ms`": f"at most {options.MAX_SLO_MS:.0f}",
    "`x-supersede-key`": f"1 to {options.MAX_SUPERSEDE_KEY_BYTES} bytes",
    "`retry-after`, `retry-after-ms`": f"at most {MAX_RETRY_AFTER_S:.0f} s",
    "`headers_too_large`": f"above {protocol.MAX_HEADER_BYTES // 1024} KiB",
}


def lines_about(name: str) -> list[str]:
    return [line for line in (ROOT / "docs" / "api.md").read_text(encoding="utf-8").splitlines() if name in line]


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_documented_as_it_is(name: str) -> None:
    assert any(LIMITS[name] in line for line in lines_about(name)), LIMITS[name]


FIELDS = {
    "logit_bias": ("maxProperties", "at most {} entries"),
    "stop_token_ids": ("maxItems", "up to {}"),
    "cache_salt": ("maxLength", "up to {} characters"),
    "tools": ("maxItems", "up to {} functions"),
    "temperature": ("maximum", "[0, {}]"),
    "top_k": ("minimum", ">= {}"),
    "repetition_penalty": ("minimum", "{} to 10"),
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_limit_of_a_field_is_documented_as_it_is(field: str) -> None:
    name, text = FIELDS[field]
    properties = msgspec.json.schema(ChatRequest)["$defs"]["ChatRequest"]["properties"]
    limit = next(option[name] for option in properties[field]["anyOf"] if name in option)
    assert any(text.format(limit) in line for line in lines_about(f"`{field}`")), text.format(limit)
