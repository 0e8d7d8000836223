"""Tools of a chat call: what the template is shown, what the output may be, and who reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ultrafast.core.errors import InvalidRequestError
from ultrafast.serving.chat_format import ChatFormat
from ultrafast.serving.contract import ChatCall
from ultrafast.serving.structured import JSON_OPTIONS, MAX_SCHEMA_CHARS, check_ends, check_grammar, schema_text
from ultrafast.serving.tool_formats import ARGS_MARKER, CLOSE_MARKER, OPEN_MARKERS, ToolFormat

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """How one call deals with tools.

    Attributes:
        shown: definitions for the template; empty when the call uses none.
        tool_format: how calls are written; None = the output is not searched for calls.
        names: functions that may be called.
        grammar: forces one call, for `tool_choice` "required" or a name; None otherwise.
    """

    shown: tuple[dict[str, Any], ...] = ()
    tool_format: ToolFormat | None = None
    names: frozenset[str] = frozenset()
    grammar: str | None = None


NO_TOOLS = ToolPlan()


def plan_tools(call: ChatCall, chat_format: ChatFormat, control_ids: Mapping[str, int]) -> ToolPlan:
    """Decide how a call deals with its tools.

    Raises:
        InvalidRequestError: malformed tools, or the model cannot call any.
    """
    if not call.tools or call.tool_choice == "none":
        if call.tool_choice not in ("none", "auto"):
            raise InvalidRequestError("tool_choice asks for a call, but there are no tools", param="tool_choice")
        return NO_TOOLS
    if not chat_format.knows_tools or chat_format.tool_format is None:
        raise InvalidRequestError(
            "this model's chat template does not define how tools are called"
            if not chat_format.knows_tools
            else "this model's way of writing tool calls is not known to this server",
            code="unsupported_parameter",
            param="tools",
            hint="leave tools out, or serve a model whose template defines tool calls (Qwen, Llama 3.1, Mistral)",
        )
    if call.options.response_format.kind != "text":
        raise InvalidRequestError(
            "tools and response_format cannot be combined",
            param="response_format",
            hint='set tool_choice to "none" for this call',
        )
    functions = _checked_functions(call.tools)
    forced = _forced_functions(functions, call.tool_choice)
    grammar = _call_grammar(forced, chat_format.tool_format, control_ids) if forced else None
    return ToolPlan(tuple(call.tools), chat_format.tool_format, frozenset(functions), grammar)


def _checked_functions(tools: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    if len(tools) > MAX_TOOLS:
        raise InvalidRequestError(f"{len(tools)} tools were given, the limit is {MAX_TOOLS}", param="tools")
    functions: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type", "function") == "function" else None
        if not isinstance(function, dict):
            raise InvalidRequestError("only tools of type function exist here", param=f"tools[{index}].type")
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidRequestError(
                "a function's name has 1 to 64 letters, digits, '_', '.' or '-'", param=f"tools[{index}].function.name"
            )
        if name in functions:
            raise InvalidRequestError(f"two functions are called {name!r}", param=f"tools[{index}].function.name")
        if not isinstance(function.get("parameters") or {}, dict):
            raise InvalidRequestError("parameters must be a JSON schema", param=f"tools[{index}].function.parameters")
        functions[name] = function
    return functions


def _forced_functions(functions: dict[str, dict[str, Any]], tool_choice: str) -> list[dict[str, Any]]:
    if tool_choice == "auto":
        return []
    if tool_choice == "required":
        return list(functions.values())
    if tool_choice not in functions:
        raise InvalidRequestError(f"tool_choice names {tool_choice!r}, which is not among the tools", param="tool_choice")
    return [functions[tool_choice]]


def _call_grammar(functions: list[dict[str, Any]], tool_format: ToolFormat, control_ids: Mapping[str, int]) -> str:
    """Return a Lark grammar (llguidance's dialect) of exactly one call. Every schema is a root of its own, so `$ref` works."""
    rules = ["start: " + " | ".join(f"call_{index}" for index in range(len(functions)))]
    for index, function in enumerate(functions):
        before, after = _frame(tool_format, function["name"], control_ids)
        rules += [f"call_{index}: {before} args_{index} {after}", f"args_{index}: %json {_parameters(function)}"]
    grammar = "\n".join(rules) + "\n"
    if len(grammar) > 2 * MAX_SCHEMA_CHARS:
        raise InvalidRequestError(
            "the tools' parameters are too large to force a call",
            param="tools",
            hint='name one function, or use tool_choice "auto"',
        )
    check_grammar(grammar, "tools")
    return grammar


def _parameters(function: dict[str, Any]) -> str:
    # As with OpenAI: only a function that is declared strict has its whole schema enforced.
    options = {**JSON_OPTIONS, "lenient": function.get("strict") is not True}
    schema = {"type": "object", **(function.get("parameters") or {}), "x-guidance": options}
    text = schema_text(schema, "tools")
    check_ends(text, "tools")
    return text


def _frame(tool_format: ToolFormat, name: str, control_ids: Mapping[str, int]) -> tuple[str, str]:
    """Return what stands before and after the arguments, as grammar terms."""

    def marker(text: str) -> str:
        return f"<[{control_ids[text]}]>" if text in control_ids else json.dumps(text)

    quoted = json.dumps(name)
    if tool_format is ToolFormat.HERMES:
        head = json.dumps(f'\n{{"name": {quoted}, "arguments": ')
        return f"{marker(OPEN_MARKERS[tool_format])} {head}", f"{json.dumps(chr(125) + chr(10))} {marker(CLOSE_MARKER)}"
    if tool_format is ToolFormat.LLAMA:
        return json.dumps(f'{{"name": {quoted}, "parameters": '), json.dumps("}")
    if ARGS_MARKER in control_ids:
        return f"{marker(OPEN_MARKERS[tool_format])} {json.dumps(name)} {marker(ARGS_MARKER)}", ""
    head = json.dumps(f'[{{"name": {quoted}, "arguments": ')
    return f"{marker(OPEN_MARKERS[tool_format])} {head}", json.dumps("}]")
