"""Whole answers: gathers the events of a call and builds one JSON body of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from ultrafast.api.answers import (
    ChatChoice,
    ChatCompletion,
    Completion,
    CompletionChoice,
    FunctionBody,
    MessageBody,
    ToolCallBody,
    chat_logprobs,
    completion_logprobs,
    usage_body,
)
from ultrafast.api.chunks import StreamFacts
from ultrafast.serving.contract import ChoiceFinished, Delta, LogprobEntry, ToolCallDelta, Usage

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class _Call:
    call_id: str | None = None
    name: str | None = None
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Choice:
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, _Call] = field(default_factory=dict)
    logprobs: list[LogprobEntry] = field(default_factory=list)
    finished: ChoiceFinished | None = None


class Collector:
    """Takes deltas and finishes of all choices, in any order between choices."""

    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {}

    def delta(self, delta: Delta) -> None:
        choice = self._choices.setdefault(delta.index, _Choice())
        if delta.text:
            choice.text.append(delta.text)
        if delta.reasoning:
            choice.reasoning.append(delta.reasoning)
        choice.logprobs.extend(delta.logprobs)
        for piece in delta.tool_calls:
            _add_call(choice.calls.setdefault(piece.index, _Call()), piece)

    def finish(self, finished: ChoiceFinished) -> None:
        self._choices.setdefault(finished.index, _Choice()).finished = finished

    def chat(self, facts: StreamFacts, usage: Usage) -> bytes:
        """The body of a chat completion."""
        return _encode(
            ChatCompletion(
                id=facts.completion_id,
                created=facts.created,
                model=facts.model,
                choices=[_chat_choice(index, self._choices[index]) for index in sorted(self._choices)],
                usage=usage_body(usage, facts.price),
                service_tier=facts.service_tier,
                system_fingerprint=facts.system_fingerprint,
                service_tier_reason=msgspec.UNSET if facts.downgrade_reason is None else facts.downgrade_reason,
            )
        )

    def completion(self, facts: StreamFacts, usage: Usage) -> bytes:
        """The body of a text completion."""
        return _encode(
            Completion(
                id=facts.completion_id,
                created=facts.created,
                model=facts.model,
                choices=[_completion_choice(index, self._choices[index]) for index in sorted(self._choices)],
                usage=usage_body(usage, facts.price),
                service_tier=facts.service_tier,
                system_fingerprint=facts.system_fingerprint,
                service_tier_reason=msgspec.UNSET if facts.downgrade_reason is None else facts.downgrade_reason,
            )
        )


def _add_call(call: _Call, piece: ToolCallDelta) -> None:
    call.call_id = piece.call_id or call.call_id
    call.name = piece.name or call.name
    call.arguments.append(piece.arguments)


def _reason(choice: _Choice) -> str:
    assert choice.finished is not None, "every choice finishes before the call completes"
    return choice.finished.reason


def _stop_reason(choice: _Choice) -> str | int | msgspec.UnsetType:
    match = choice.finished.stop_match if choice.finished else None
    return msgspec.UNSET if match is None else match


def _chat_choice(index: int, choice: _Choice) -> ChatChoice:
    calls = [
        ToolCallBody(id=call.call_id, type="function", function=FunctionBody(call.name, "".join(call.arguments)))
        for _, call in sorted(choice.calls.items())
    ]
    text = "".join(choice.text)
    message = MessageBody(content=text if text or not calls else None)
    if choice.reasoning:
        message.reasoning_content = "".join(choice.reasoning)
    if calls:
        message.tool_calls = calls
    logprobs = chat_logprobs(choice.logprobs) if choice.logprobs else None
    return ChatChoice(index, message, _reason(choice), logprobs, _stop_reason(choice))


def _completion_choice(index: int, choice: _Choice) -> CompletionChoice:
    logprobs = completion_logprobs(choice.logprobs, 0) if choice.logprobs else None
    return CompletionChoice(index, "".join(choice.text), _reason(choice), logprobs, _stop_reason(choice))
