"""Tool calls out of a stream of text. Text in front of a call passes at once; whatever is not a call is delivered as text."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from ultrafast.serving.tool_formats import (
    CLOSE_MARKER,
    OPEN_MARKERS,
    PYTHON_TAG,
    ToolCall,
    ToolFormat,
    parse_call,
    parse_mistral,
)

MAX_CALL_CHARS = 256 * 1024


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a piece of output turned out to be: text first, then calls."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()


class ToolParser(Protocol):
    """Takes the output of one choice in pieces of any size."""

    def add(self, text: str) -> Parsed: ...
    def finish(self) -> Parsed:
        """The output is over: say what was held back."""
        ...


def partial_suffix(text: str, marker: str) -> int:
    """Return how many characters at the end of the text may be the beginning of the marker (not all of it)."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0


class HermesParser:
    """`<tool_call>{...}</tool_call>`, any number of them, text in between.

    A call whose closing tag the output's end cut off still counts when its JSON is whole.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._open = OPEN_MARKERS[ToolFormat.HERMES]
        self._names = names
        self._outside = ""
        self._inside: list[str] | None = None
        self._tail = ""
        self._num_inside = 0

    def add(self, text: str) -> Parsed:
        texts: list[str] = []
        calls: list[ToolCall] = []
        rest = text
        while rest:
            rest = self._add_outside(rest, texts) if self._inside is None else self._add_inside(rest, texts, calls)
        return Parsed("".join(texts), tuple(calls))

    def finish(self) -> Parsed:
        held, self._outside = self._outside, ""
        if self._inside is None:
            return Parsed(held)
        body = "".join(self._inside) + self._tail
        self._inside = None
        call = self._valid(body)
        return Parsed(calls=(call,)) if call else Parsed(held + self._open + body)

    def _add_outside(self, text: str, texts: list[str]) -> str:
        text = self._outside + text
        before, marker, after = text.partition(self._open)
        if marker:
            # White space in front of a call belongs to the markup; it is delivered only if the call turns out to be none.
            kept = before.rstrip()
            texts.append(kept)
            self._outside, self._inside, self._tail, self._num_inside = before[len(kept) :], [], "", 0
            return after
        visible = text[: len(text) - partial_suffix(text, self._open)].rstrip()
        # A long run of white space is output, not the gap in front of a call.
        visible = visible if len(text) - len(visible) < 64 else text[:-32]
        texts.append(visible)
        self._outside = text[len(visible) :]
        return ""

    def _add_inside(self, text: str, texts: list[str], calls: list[ToolCall]) -> str:
        assert self._inside is not None, "no call is open"
        window = self._tail + text
        before, marker, after = window.partition(CLOSE_MARKER)
        if not marker and self._num_inside <= MAX_CALL_CHARS:
            keep = partial_suffix(window, CLOSE_MARKER)
            cut = len(window) - keep
            self._inside.append(window[:cut])
            self._num_inside += cut
            self._tail = window[cut:]
            return ""
        body = "".join(self._inside) + before
        self._inside, self._tail = None, ""
        call = self._valid(body)
        if call is None:
            texts.append(self._outside + self._open + body + marker)
        else:
            calls.append(call)
        self._outside = ""
        return after

    def _valid(self, body: str) -> ToolCall | None:
        call = parse_call(body)
        return call if call is not None and call.name in self._names else None


class LlamaParser:
    """The whole output is one or more JSON objects, `;` or white space between them; otherwise it is text from the start."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._is_text = False
        self._parts: list[str] = []
        self._start = ""

    def add(self, text: str) -> Parsed:
        if self._is_text:
            return Parsed(text)
        self._parts.append(text)
        if len(self._start) < len(PYTHON_TAG) + 1:
            self._start = (self._start + text).lstrip()[: len(PYTHON_TAG) + 1]
            if not self._may_be_call():
                self._is_text = True
                return Parsed(self._drain())
        return Parsed()

    def finish(self) -> Parsed:
        text = self._drain()
        body = text.strip().removeprefix(PYTHON_TAG)
        calls = [parse_call(part) for part in _split_objects(body)]
        found = tuple(call for call in calls if call is not None and call.name in self._names)
        return Parsed(calls=found) if found and len(found) == len(calls) else Parsed(text)

    def _may_be_call(self) -> bool:
        start = self._start
        return not start or start[0] == "{" or PYTHON_TAG.startswith(start) or start == PYTHON_TAG + "{"

    def _drain(self) -> str:
        text = "".join(self._parts)
        self._parts.clear()
        return text


class MistralParser:
    """Everything after `[TOOL_CALLS]` is calls; nothing is said after them."""

    def __init__(self, names: Collection[str]) -> None:
        self._open = OPEN_MARKERS[ToolFormat.MISTRAL]
        self._names = names
        self._held = ""
        self._calls: list[str] | None = None

    def add(self, text: str) -> Parsed:
        if self._calls is not None:
            self._calls.append(text)
            return Parsed()
        before, marker, after = (self._held + text).partition(self._open)
        if marker:
            self._calls, self._held = [after], ""
            return Parsed(before)
        keep = partial_suffix(before, self._open)
        cut = len(before) - keep
        self._held = before[cut:]
        return Parsed(before[:cut])

    def finish(self) -> Parsed:
        if self._calls is None:
            return Parsed(self._held)
        body = "".join(self._calls)
        calls = parse_mistral(body)
        if calls is None or any(call.name not in self._names for call in calls):
            return Parsed(self._open + body)
        return Parsed(calls=tuple(calls))


def _split_objects(text: str) -> list[str]:
    """Cut a run of JSON objects into single ones; what cannot be cut stays one piece."""
    parts: list[str] = []
    depth = begin = 0
    is_quoted = is_escaped = False
    for position, char in enumerate(text):
        if is_quoted:
            is_quoted, is_escaped = is_escaped or char != '"', not is_escaped and char == "\\"
        elif char == '"':
            is_quoted = True
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                parts.append(text[begin : position + 1].lstrip("; \n\t"))
                begin = position + 1
    rest = text[begin:].strip("; \n\t")
    return [*parts, rest] if rest else parts


def new_parser(tool_format: ToolFormat, names: Collection[str]) -> ToolParser:
    """Return a parser for one choice; calls of functions that were not offered are text."""
    kinds: dict[ToolFormat, type[HermesParser] | type[LlamaParser] | type[MistralParser]] = {
        ToolFormat.HERMES: HermesParser,
        ToolFormat.LLAMA: LlamaParser,
        ToolFormat.MISTRAL: MistralParser,
    }
    return kinds[tool_format](names)
