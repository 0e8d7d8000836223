"""The body of `POST /v1/chat/completions`. Messages and tools are checked here and handed on as the client wrote them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ultrafast.api.fields import MAX_LOGPROBS, MAX_MESSAGES, Count, GenerationRequest


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    """A piece of text."""

    text: str


class RefusalPart(msgspec.Struct, tag_field="type", tag="refusal"):
    """A refusal that the assistant gave before."""

    refusal: str


class SystemMessage(msgspec.Struct, tag_field="role", tag="system"):
    """Instructions."""

    content: str | list[TextPart]


class DeveloperMessage(msgspec.Struct, tag_field="role", tag="developer"):
    """Instructions; models that do not know the role get it as `system`."""

    content: str | list[TextPart]


class UserMessage(msgspec.Struct, tag_field="role", tag="user"):
    """What the user says."""

    content: str | list[TextPart]


class FunctionCall(msgspec.Struct):
    """Name and arguments of a call; the arguments are JSON as text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    """A call that the assistant made before."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class AssistantMessage(msgspec.Struct, tag_field="role", tag="assistant"):
    """What the assistant said before."""

    content: str | list[TextPart | RefusalPart] | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None


class ToolMessage(msgspec.Struct, tag_field="role", tag="tool"):
    """The result of a tool call; `tool_call_id` says of which."""

    content: str | list[TextPart]
    tool_call_id: str


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class FunctionSpec(msgspec.Struct):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    """A tool. Functions are the only kind."""

    function: FunctionSpec
    type: Literal["function"]


class NamedFunction(msgspec.Struct):
    """A function by name."""

    name: str


class NamedToolChoice(msgspec.Struct):
    """Call exactly this function."""

    function: NamedFunction
    type: Literal["function"]


class ChatRequest(GenerationRequest, kw_only=True):
    """A chat completion request."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
