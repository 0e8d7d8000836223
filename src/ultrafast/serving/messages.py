"""A client's messages, as chat templates expect them: plain text contents, arguments as objects, no null fields.

Everything here is about shape. What the text may do to the prompt is the business of `provenance`.
"""

from __future__ import annotations

import json
from typing import Any

from ultrafast.core.errors import InvalidRequestError

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_MAX_DEPTH = 64

Message = dict[str, Any]


def normalise(messages: list[Message], *, knows_developer: bool, wants_parts: bool) -> list[Message]:
    """Return messages for a template; the input is not changed.

    Args:
        messages: in OpenAI's shape.
        knows_developer: the template has the role "developer"; otherwise it becomes "system".
        wants_parts: the template iterates over content parts and would drop a plain string.

    Raises:
        InvalidRequestError: unknown role, no messages, or content that is not text.
    """
    if not messages:
        raise InvalidRequestError("messages is empty", param="messages", hint="send at least one message")
    return [_message(message, index, knows_developer, wants_parts) for index, message in enumerate(messages)]


def _message(message: Message, index: int, knows_developer: bool, wants_parts: bool) -> Message:
    role = message.get("role")
    if role not in _ROLES:
        raise InvalidRequestError(
            f"messages[{index}].role is {role!r}", param=f"messages[{index}].role", hint=f"use one of {', '.join(sorted(_ROLES))}"
        )
    if role == "developer" and not knows_developer:
        role = "system"
    text = _text(message.get("content"), f"messages[{index}].content")
    result = {key: value for key, value in message.items() if value is not None}
    result["role"] = role
    result["content"] = [{"type": "text", "text": text}] if wants_parts else text
    calls = result.pop("tool_calls", None)
    if calls:
        result["tool_calls"] = [_tool_call(call, f"messages[{index}].tool_calls[{i}]") for i, call in enumerate(calls)]
    check_depth(result, f"messages[{index}]")
    return result


def _text(content: Any, param: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequestError(f"{param} must be text or a list of text parts", param=param)
    return "\n".join(_part_text(part, param) for part in content)


def _part_text(part: Any, param: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    if kind in _TEXT_PARTS and isinstance(part.get("text"), str):
        return str(part["text"])
    raise InvalidRequestError(
        f"{param} has a part of type {kind!r}; this model reads text only",
        param=param,
        hint='send parts of the form {"type": "text", "text": "..."}',
    )


def _tool_call(call: Any, param: str) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequestError(f"{param} has no function with a name", param=param)
    return {**call, "type": "function", "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(arguments: Any) -> Any:
    """Templates print arguments with `tojson`, so they want the object; what is not JSON stays the text it is."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments


def check_depth(value: Any, param: str) -> None:
    """Refuse JSON that is nested so deeply that whoever walks it would run out of stack.

    Raises:
        InvalidRequestError: deeper than 64 levels.
    """
    level = [value]
    for _ in range(_MAX_DEPTH):
        below: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                node = node.values()
            elif not isinstance(node, list):
                continue
            for child in node:
                if isinstance(child, dict | list):
                    below.append(child)  # noqa: PERF401 - a comprehension costs a call per node
        if not below:
            return
        level = below
    raise InvalidRequestError(f"{param} is nested more than {_MAX_DEPTH} levels deep", param=param)
