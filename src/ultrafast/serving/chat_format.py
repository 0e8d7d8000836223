"""What a chat template can do, found out by rendering small conversations with it once, when the server starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ultrafast.core.errors import InvalidRequestError
from ultrafast.serving.template import ChatTemplate
from ultrafast.serving.tool_formats import ToolFormat, detect_format

_PROBE = "ultrafast probe"
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "ultrafast_probe_tool",
        "description": "probe",
        "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "x"}}, "required": ["x"]},
    },
}


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The abilities of a template.

    Attributes:
        wants_parts: it reads a list of content parts and ignores a plain string.
        knows_developer: it has the role "developer".
        knows_tools: tool definitions given to it appear in the prompt.
        tool_format: how its model writes tool calls, None when that is not known.
        has_reasoning: its model thinks between `<think>` and `</think>`.
    """

    wants_parts: bool
    knows_developer: bool
    knows_tools: bool
    tool_format: ToolFormat | None
    has_reasoning: bool


def probe(template: ChatTemplate) -> ChatFormat:
    """Find out what a template can do. Never raises: a template that refuses every probe just can do little."""
    knows_tools = any(_renders_tools(template, content) for content in (_PROBE, [{"type": "text", "text": _PROBE}]))
    return ChatFormat(
        wants_parts=not _shows(template, _PROBE) and _shows(template, [{"type": "text", "text": _PROBE}]),
        knows_developer="developer" in template.source,
        knows_tools=knows_tools,
        tool_format=detect_format(template.source) if knows_tools else None,
        has_reasoning="<think>" in template.source and "</think>" in template.source,
    )


def _try_render(template: ChatTemplate, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
    try:
        return template.render(messages, tools=tools)
    except InvalidRequestError:
        return ""


def _shows(template: ChatTemplate, content: Any) -> bool:
    return _PROBE in _try_render(template, [{"role": "user", "content": content}])


def _renders_tools(template: ChatTemplate, content: Any) -> bool:
    conversations = (
        [{"role": "user", "content": content}],
        [{"role": "system", "content": content}, {"role": "user", "content": content}],
    )
    return any("ultrafast_probe_tool" in _try_render(template, messages, [_PROBE_TOOL]) for messages in conversations)
