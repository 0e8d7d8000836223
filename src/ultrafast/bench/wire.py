"""What an OpenAI-style server says, as far as a measurement needs it: chunks, usage, errors, `server-timing`. Lenient on purpose.

Servers differ in what they leave out; only bytes that are no JSON object at all are an error.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ultrafast.bench.records import ChunkKind, Usage

DONE = b"[DONE]"
TIMING_COMMENT = b"server-timing "
"""Begins the comment in which our server tells the parts of a stream at its end: its headers came too early for them."""


class Choice(msgspec.Struct):
    """One entry of `choices`; `text` is that of `/v1/completions`."""

    delta: dict[str, Any] | None = None
    text: str | None = None
    finish_reason: str | None = None


class Event(msgspec.Struct):
    """One event of a stream."""

    choices: list[Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None
    service_tier: str | None = None


decode_event = msgspec.json.Decoder(Event, strict=False).decode
"""Raises msgspec.DecodeError on bytes that are no such event."""


def generated(choice: Choice) -> tuple[ChunkKind, str] | None:
    """What a choice adds to the answer, or None for role, finish and empty deltas."""
    delta = choice.delta
    if delta is None:
        return (ChunkKind.CONTENT, choice.text) if choice.text else None
    if content := delta.get("content"):
        return ChunkKind.CONTENT, content if isinstance(content, str) else _text_of_parts(content)
    if reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
        return ChunkKind.REASONING, str(reasoning)
    calls = delta.get("tool_calls")
    if isinstance(calls, list) and any(_has_call_text(call) for call in calls):
        return ChunkKind.TOOL, ""
    return None


def _text_of_parts(content: Any) -> str:
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _has_call_text(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and bool(function.get("name") or function.get("arguments"))


def read_usage(usage: dict[str, Any]) -> Usage:
    """The counts of a `usage` object; what is missing or no number becomes None."""
    return Usage(
        _count(usage, "prompt_tokens"),
        _count(usage, "completion_tokens"),
        _count(usage.get("prompt_tokens_details"), "cached_tokens"),
        _count(usage.get("completion_tokens_details"), "reasoning_tokens"),
    )


def _count(fields: Any, name: str) -> int | None:
    value = fields.get(name) if isinstance(fields, dict) else None
    return value if isinstance(value, int) and value >= 0 else None


def read_error(error: Any) -> tuple[str, str | None]:
    """Message and code of an `error` value, cut to a sane length."""
    if isinstance(error, dict):
        code = error.get("code")
        return str(error.get("message", error))[:300], None if code is None else str(code)[:80]
    return str(error)[:300], None


def read_error_body(body: bytes) -> tuple[str, str | None]:
    """Message and code of the body of a non-200 answer, in whatever shape it comes."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body[:200].decode("utf-8", "replace"), None
    return read_error(value.get("error", value) if isinstance(value, dict) else value)


def read_server_timing(header: str) -> dict[str, float]:
    """Durations of a `server-timing` header in seconds, by name. Source: W3C Server Timing (`dur` is in milliseconds)."""
    parts: dict[str, float] = {}
    for entry in header.split(","):
        name, *parameters = (text.strip() for text in entry.split(";"))
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip().lower() == "dur":
                try:
                    parts[name] = float(value.strip().strip('"')) / 1000
                except ValueError:
                    continue
    return parts
