"""Streamed chunks as bytes. What does not change during a stream is encoded once; a token costs one string encoding.

data: {"id":...,"choices":[{"index":0,"delta":{"content":  "text"  },"logprobs":null,"finish_reason":null}]}
|---------------------------- head ---------------------|          |------------------- tail ------------------|
"""

from __future__ import annotations

from typing import Any

import msgspec

from ultrafast.api.answers import (
    FunctionBody,
    ToolCallBody,
    chat_logprobs,
    completion_logprobs,
    usage_body,
)
from ultrafast.core.price import FREE, TierPrice
from ultrafast.serving.contract import ChoiceFinished, Delta, ToolCallDelta, Usage

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
_TEXT_END = b'},"logprobs":null,"finish_reason":null}'
_encode = msgspec.json.Encoder().encode


class StreamFacts(msgspec.Struct, frozen=True):
    """What every chunk of a stream says, and how usage is told.

    `price` is that of the tier that serves. `downgrade_reason`: why `service_tier` is not what was asked for; None when it is.
    """

    completion_id: str
    created: int
    model: str
    service_tier: str
    system_fingerprint: str
    num_prompt_tokens: int
    num_cached_tokens: int
    has_usage: bool = False
    has_continuous_usage: bool = False
    downgrade_reason: str | None = None
    price: TierPrice = FREE


class _Chunks:
    """What both kinds of streams share."""

    object_name = ""

    def __init__(self, facts: StreamFacts) -> None:
        self._facts = facts
        self._num_output_tokens = 0
        head = {
            "id": facts.completion_id,
            "object": self.object_name,
            "created": facts.created,
            "model": facts.model,
            "service_tier": facts.service_tier,
            "system_fingerprint": facts.system_fingerprint,
        }
        if facts.downgrade_reason is not None:
            head["service_tier_reason"] = facts.downgrade_reason
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        self._end = b'],"usage":null}\n\n' if facts.has_usage else b"]}\n\n"
        self._has_fixed_end = not facts.has_continuous_usage
        self._text_end = _TEXT_END + self._end

    def usage(self, usage: Usage) -> bytes:
        """The last chunk, if the client asked for usage; else nothing."""
        if not self._facts.has_usage:
            return b""
        return self._head + b'],"usage":' + _encode(usage_body(usage, self._facts.price)) + b"}\n\n"

    def _close(self) -> bytes:
        if not self._facts.has_continuous_usage:
            return self._end
        facts = self._facts
        so_far = Usage(facts.num_prompt_tokens, self._num_output_tokens, facts.num_cached_tokens)
        return b'],"usage":' + _encode(usage_body(so_far, facts.price)) + b"}\n\n"

    def _choice(self, choice: dict[str, Any]) -> bytes:
        return self._head + _encode(choice) + self._close()


class ChatChunks(_Chunks):
    """Chunks of `/v1/chat/completions`. The role comes with the first output of a choice, never before it."""

    object_name = "chat.completion.chunk"

    def __init__(self, facts: StreamFacts) -> None:
        super().__init__(facts)
        self._text_heads: dict[int, bytes] = {}

    def delta(self, delta: Delta) -> bytes:
        """New output of a choice; b"" when there is nothing to show."""
        self._num_output_tokens += delta.num_tokens
        head = self._text_heads.get(delta.index)
        opening = b""
        if head is None:
            opening, head = self._open(delta.index)
        if not (delta.tool_calls or delta.reasoning or delta.logprobs):
            if not delta.text:
                return opening
            if self._has_fixed_end:
                return opening + head + _encode(delta.text) + self._text_end
            return opening + head + _encode(delta.text) + _TEXT_END + self._close()
        return opening + self._rich(delta)

    def finish(self, finished: ChoiceFinished) -> bytes:
        """The chunk that says why a choice ended."""
        opening = b"" if finished.index in self._text_heads else self._open(finished.index)[0]
        choice = {"index": finished.index, "delta": {}, "logprobs": None, "finish_reason": finished.reason}
        if finished.stop_match is not None:
            choice["stop_reason"] = finished.stop_match
        return opening + self._choice(choice)

    def _open(self, index: int) -> tuple[bytes, bytes]:
        head = self._text_heads[index] = self._head + b'{"index":%d,"delta":{"content":' % index
        role = {"role": "assistant", "content": ""}
        return self._choice({"index": index, "delta": role, "logprobs": None, "finish_reason": None}), head

    def _rich(self, delta: Delta) -> bytes:
        fields: dict[str, Any] = {}
        if delta.text or not (delta.tool_calls or delta.reasoning):
            fields["content"] = delta.text
        if delta.reasoning:
            fields["reasoning_content"] = delta.reasoning
        if delta.tool_calls:
            fields["tool_calls"] = [_tool_call(call) for call in delta.tool_calls]
        logprobs = chat_logprobs(delta.logprobs) if delta.logprobs else None
        return self._choice({"index": delta.index, "delta": fields, "logprobs": logprobs, "finish_reason": None})


class CompletionChunks(_Chunks):
    """Chunks of `/v1/completions`."""

    object_name = "text_completion"

    def __init__(self, facts: StreamFacts) -> None:
        super().__init__(facts)
        self._offsets: dict[int, int] = {}

    def delta(self, delta: Delta) -> bytes:
        """New output of a choice; b"" when there is nothing to show."""
        self._num_output_tokens += delta.num_tokens
        if not delta.logprobs:
            if not delta.text:
                return b""
            offset = self._offsets.get(delta.index, 0)
            self._offsets[delta.index] = offset + len(delta.text)
            head = b'{"index":%d,"text":' % delta.index
            return self._head + head + _encode(delta.text) + b',"logprobs":null,"finish_reason":null}' + self._close()
        logprobs = completion_logprobs(delta.logprobs, self._offsets.get(delta.index, 0))
        self._offsets[delta.index] = logprobs.text_offset[-1] + len(delta.logprobs[-1].token)
        return self._choice({"index": delta.index, "text": delta.text, "logprobs": logprobs, "finish_reason": None})

    def finish(self, finished: ChoiceFinished) -> bytes:
        """The chunk that says why a choice ended."""
        choice = {"index": finished.index, "text": "", "logprobs": None, "finish_reason": finished.reason}
        if finished.stop_match is not None:
            choice["stop_reason"] = finished.stop_match
        return self._choice(choice)


def _tool_call(call: ToolCallDelta) -> ToolCallBody:
    kind = "function" if call.call_id is not None else None
    return ToolCallBody(call.index, call.call_id, kind, FunctionBody(call.name, call.arguments))
