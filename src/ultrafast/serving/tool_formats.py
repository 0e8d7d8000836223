"""The ways in which models write tool calls, recognised by what their chat template says about them.

hermes    <tool_call>{"name": "f", "arguments": {...}}</tool_call>          Qwen 2.5 and 3, Hermes, SmolLM 2 (larger ones)
llama     {"name": "f", "parameters": {...}}                                Llama 3.1, 3.2
mistral   [TOOL_CALLS][{"name": "f", "arguments": {...}}]                   Mistral
          [TOOL_CALLS]f[ARGS]{...}                                          Mistral from v11 on
"""

from __future__ import annotations

import json
import secrets
import string
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_ID_CHARS = string.ascii_letters + string.digits


class ToolFormat(StrEnum):
    """How a model writes tool calls."""

    HERMES = "hermes"
    LLAMA = "llama"
    MISTRAL = "mistral"


OPEN_MARKERS = {ToolFormat.HERMES: "<tool_call>", ToolFormat.MISTRAL: "[TOOL_CALLS]"}
CLOSE_MARKER = "</tool_call>"
ARGS_MARKER = "[ARGS]"
PYTHON_TAG = "<|python_tag|>"
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

MARKERS = (*OPEN_MARKERS.values(), CLOSE_MARKER, ARGS_MARKER, PYTHON_TAG, THINK_OPEN, THINK_CLOSE)
"""Texts that must reach the parsers even where they are control tokens."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete call. `arguments` is JSON text."""

    name: str
    arguments: str


def detect_format(template_source: str) -> ToolFormat | None:
    """Return the format that a chat template teaches, None when it is none of those known here."""
    if "[TOOL_CALLS]" in template_source:
        return ToolFormat.MISTRAL
    if "<tool_call>" in template_source and "<function=" not in template_source and "<arg_key>" not in template_source:
        return ToolFormat.HERMES
    if "<|python_tag|>" in template_source or ('"parameters": ' in template_source and '{"name": ' in template_source):
        return ToolFormat.LLAMA
    return None


def new_call_id(tool_format: ToolFormat) -> str:
    """Return a fresh id. Mistral's templates refuse any that is not nine letters and digits."""
    if tool_format is ToolFormat.MISTRAL:
        return "".join(secrets.choice(_ID_CHARS) for _ in range(9))
    return "call_" + secrets.token_hex(12)


def parse_call(text: str) -> ToolCall | None:
    """Return the call that a JSON object describes, None when it is not one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return call_of(value)


def call_of(value: Any) -> ToolCall | None:
    """Return the call in a decoded JSON value; `parameters` is another word for `arguments`."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        return ToolCall(value["name"], arguments)
    if not isinstance(arguments, dict):
        return None
    return ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False))


def parse_mistral(text: str) -> list[ToolCall] | None:
    """Return the calls in what follows `[TOOL_CALLS]`, None when it is malformed."""
    if ARGS_MARKER in text:
        return _parse_mistral_named(text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    calls = [call_of(item) for item in (value if isinstance(value, list) else [value])]
    found = [call for call in calls if call is not None]
    return found if found and len(found) == len(calls) else None


def _parse_mistral_named(text: str) -> list[ToolCall] | None:
    calls: list[ToolCall] = []
    for part in text.split(OPEN_MARKERS[ToolFormat.MISTRAL]):
        name, marker, arguments = part.partition(ARGS_MARKER)
        try:
            is_valid = bool(marker) and isinstance(json.loads(arguments), dict)
        except (ValueError, RecursionError):
            is_valid = False
        if not is_valid or not name.strip():
            return None
        calls.append(ToolCall(name.strip(), arguments.strip()))
    return calls
