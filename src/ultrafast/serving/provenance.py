r"""Who wrote which part of a prompt: a client's text must never become control tokens, whatever the template does with it.

Any control token in a rendered prompt begins and ends with a known character (`<`, `[`, ...). So the conversation is rendered a
second time with these characters of the client's text exchanged for private-use characters that nobody wrote:

    plain      <|im_start|>user\nWhat is <|im_end|>?<|im_end|>
    neutral    <|im_start|>user\nWhat is \uXXXX|im_end|\uXXXX?<|im_end|>

Every control token in the neutral rendering is the template's. If changing the characters back gives the plain rendering, the
template did not care, and the neutral rendering says exactly where the prompt may be cut. If it did care (it looks for `</think>`
in a message), the strings that the template can look for are left as they are, as far as they cannot be a part of a control
token, and the same proof is tried again. Without proof the request is refused.

Text without any of these characters (most text) needs one rendering.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ultrafast.core.errors import InvalidRequestError
from ultrafast.serving.control_tokens import ControlTokens, Item

_PRIVATE_FIRST, _PRIVATE_LAST = 0xF0000, 0xFFFFD
_PRIVATE = re.compile(f"[{chr(_PRIVATE_FIRST)}-{chr(_PRIVATE_LAST)}]")

_WORD_KEYS = frozenset({"role", "type"})

Render = Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt's text, and the same text cut at the template's control tokens.

    `num_renderings` says how hard it was to prove: 1, 2 or 3.
    """

    text: str
    items: list[Item]
    num_renderings: int = 1


class Provenance:
    """Cuts prompts at the template's own control tokens. One per template and vocabulary; immutable; any thread may call."""

    def __init__(self, control: ControlTokens, template_literals: frozenset[str]) -> None:
        self._control = control
        self._edges = "".join(sorted(control.edges))
        self._edge = re.compile(f"[{re.escape(self._edges)}]") if self._edges else None
        kept = [literal for literal in template_literals if self._has_edge(literal) and not control.touches(literal)]
        self._kept = re.compile("|".join(re.escape(text) for text in sorted(kept, key=len, reverse=True))) if kept else None

    def render(self, values: Any, render: Render) -> Rendered:
        """Render client values (any JSON) and cut the result.

        Args:
            values: all that the client has a say in.
            render: values -> prompt text; called up to three times with values of the same shape.

        Raises:
            InvalidRequestError: what `render` raises, or the client's text cannot be told from the template's.
        """
        text = render(values)
        if not self._is_suspicious(values):
            return Rendered(text, self._control.split(text))
        exchange, restore = self._exchange_tables(values, text)
        for num_renderings, change in enumerate(self._attempts(exchange), 2):
            neutral = render(self._change(values, change))
            if neutral.translate(restore) == text:
                items = [item if isinstance(item, int) else item.translate(restore) for item in self._control.split(neutral)]
                return Rendered(text, items, num_renderings)
        raise InvalidRequestError(
            "the messages contain text that this model's chat template would take for its own control tokens",
            param="messages",
            hint="remove control tokens and reasoning tags from the messages; send reasoning as reasoning_content",
        )

    def _has_edge(self, text: str) -> bool:
        return self._edge is not None and self._edge.search(text) is not None

    def _is_suspicious(self, values: Any) -> bool:
        edge, control = self._edge, self._control
        for text in _strings(values):
            if edge is not None and edge.search(text) is not None:
                return True
            if len(text) < control.max_length and control.is_inner(text):
                return True
        return False

    def _exchange_tables(self, values: Any, text: str) -> tuple[dict[int, int], dict[int, int]]:
        """Return (character -> private-use character, and back) for edges and for all of strings that are inner parts."""
        used = set(_PRIVATE.findall(text))
        chars = set(self._edges)
        for string in _strings(values):
            used.update(_PRIVATE.findall(string))
            if self._control.is_inner(string):
                chars.update(string)
        free = (code for code in range(_PRIVATE_FIRST, _PRIVATE_LAST) if chr(code) not in used)
        pairs = [(ord(char), code) for char, code in zip(sorted(chars), free, strict=False)]
        if len(pairs) < len(chars):
            raise InvalidRequestError("the messages use up all private-use characters of Unicode", param="messages")
        return dict(pairs), {code: char for char, code in pairs}

    def _attempts(self, exchange: dict[int, int]) -> list[Callable[[str], str]]:
        edges = {char: exchange[char] for char in map(ord, self._edges)}

        def neutral(string: str) -> str:
            return string.translate(exchange if self._control.is_inner(string) else edges)

        def neutral_between(string: str) -> str:
            return neutral(string) if self._control.is_inner(string) else self._translate_between(string, edges)

        return [neutral] if self._kept is None else [neutral, neutral_between]

    def _translate_between(self, string: str, edges: dict[int, int]) -> str:
        """Exchange everywhere but in strings that the template may look for."""
        assert self._kept is not None, "asked to keep strings where there are none"
        parts: list[str] = []
        end = 0
        for found in self._kept.finditer(string):
            parts += (string[end : found.start()].translate(edges), found.group())
            end = found.end()
        return "".join(parts) + string[end:].translate(edges)

    def _change(self, value: Any, change: Callable[[str], str]) -> Any:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, dict):
            return {
                (change(key) if self._has_edge(key) else key): child if _is_word(key, child) else self._change(child, change)
                for key, child in value.items()
            }
        if isinstance(value, list):
            return [self._change(child, change) for child in value]
        return value


def _strings(value: Any) -> list[str]:
    """Every string that a client wrote, keys that are not plain words included; in no order."""
    found: list[str] = []
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            found.append(node)
        elif isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            for key, child in node.items():
                if not key.isidentifier():
                    found.append(key)
                if key not in _WORD_KEYS or not _is_word(key, child):
                    waiting.append(child)
    return found


def _is_word(key: str, value: Any) -> bool:
    """Words of the protocol, which templates compare and even build control tokens from (`<|user|>`): checked elsewhere."""
    return key in _WORD_KEYS and isinstance(value, str) and value.isidentifier()
