"""The request fields that both generation routes share, with types and ranges: msgspec checks them, OpenAPI shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_LOGPROBS = 20
MAX_PROMPTS = 128
MAX_MESSAGES = 10_000
INT64 = Meta(ge=-(2**63), le=2**63 - 1)

Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
PositivePenalty = Annotated[float, Meta(gt=0, le=10)]
MAX_BIAS = 100
Share = Annotated[float, Meta(gt=0, le=1)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
CountOrZero = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TierName = Literal["ultrafast", "priority", "fast", "default", "standard", "auto", "flex", "batch"]


class StreamOptions(msgspec.Struct, kw_only=True):
    """How a stream reports usage."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(msgspec.Struct, kw_only=True):
    """Fields of `/v1/chat/completions` and `/v1/completions` alike. Null is the same as not given."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    max_tokens: Count | None = None
    min_tokens: CountOrZero | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repeat_penalty: PositivePenalty | None = None
    repetition_penalty: PositivePenalty | None = None
    logit_bias: Annotated[dict[str, float], Meta(max_length=1024)] | None = None
    seed: Annotated[int, INT64] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=64)] | None = None
    ignore_eos: bool | None = None
    service_tier: TierName | None = None
    mode: Literal["interactive", "standard", "batch"] | None = None
    cache: Literal["on", "off"] | None = None
    cache_salt: Annotated[str, Meta(max_length=256)] | None = None
    speculation: bool | None = None
    deterministic: bool | None = None
    response_format: ResponseFormats | None = None


class TextFormat(msgspec.Struct, tag_field="type", tag="text"):
    """Free text."""


class JsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchemaSpec(msgspec.Struct, kw_only=True):
    """A JSON schema. It is always enforced, `strict` or not."""

    schema: dict[str, Any]
    name: Annotated[str, Meta(max_length=128)] | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema"):
    """JSON that matches a schema."""

    json_schema: JsonSchemaSpec


ResponseFormats = TextFormat | JsonObjectFormat | JsonSchemaFormat
