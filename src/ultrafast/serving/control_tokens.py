"""The control tokens of a vocabulary as text, and where they stand in a prompt.

Only the template may put control tokens into a prompt. This module knows what they look like; `provenance` knows who wrote what.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ultrafast.serving.ports import Tokenizer

Item = int | str
"""Part of a split prompt: a control token's id, or the raw text between two of them."""

_SEPARATOR = "\0"
_SPACE = " \t\n\v\f\r"
# A model without byte tokens answers unknown characters with this one; it controls nothing.
_HARMLESS = frozenset({"<unk>", "[UNK]"})


class ControlTokens:
    """Control tokens by text. Immutable; any thread may call.

    Attributes:
        ids: text -> token id.
        forbidden_ids: ids that raw text must never produce.
        edges: every character that a control token begins or ends with.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.ids = _control_texts(tokenizer)
        self.forbidden_ids = frozenset(token for text, token in self.ids.items() if text not in _HARMLESS)
        self.edges = frozenset(char for text in self.ids for char in (text[0], text[-1]))
        self._lengths = sorted({len(text) for text in self.ids}, reverse=True)
        self.max_length = self._lengths[0] if self._lengths else 0
        # One text to search: vocabularies have thousands of them (`<unused0>` ...).
        self._joined = _SEPARATOR.join(self.ids)
        self._prefixes = frozenset(text[:length] for text in self.ids for length in range(1, len(text)))
        self._suffixes = frozenset(text[-length:] for text in self.ids for length in range(1, len(text)))
        starts = "".join({text[0] for text in self.ids})
        self._start = re.compile(f"[{re.escape(starts)}]") if starts else None

    def split(self, text: str) -> list[Item]:
        """Cut text at every control token, as libllama does for text whose special tokens it parses."""
        items: list[Item] = []
        begin = position = 0
        ids = self.ids
        while self._start is not None and (found := self._start.search(text, position)):
            position = found.start()
            for length in self._lengths:
                token = ids.get(text[position : position + length])
                if token is not None:
                    if position > begin:
                        items.append(text[begin:position])
                    items.append(token)
                    begin = position = position + length
                    break
            else:
                position += 1
        if begin < len(text):
            items.append(text[begin:])
        return items

    def is_inner(self, text: str) -> bool:
        """Whether the text is a part of some control token, so that a template could complete it to one."""
        return 0 < len(text) < self.max_length and _SEPARATOR not in text and text in self._joined

    def touches(self, text: str) -> bool:
        """Whether the text contains a control token, is a part of one, or could form one with its neighbours."""
        if self.is_inner(text) or any(isinstance(item, int) for item in self.split(text)):
            return True
        return any(
            text[-length:] in self._prefixes or text[:length] in self._suffixes
            for length in range(1, min(len(text), self.max_length))
        )


def _control_texts(tokenizer: Tokenizer) -> dict[str, int]:
    texts: dict[str, int] = {}
    for token, piece in enumerate(tokenizer.pieces):
        if not piece:
            text = tokenizer.special_text(token)
            if text.strip(_SPACE):
                texts.setdefault(text, token)
    return texts


def strip_rules(control_id: int, control_text: str, tokenizer: Tokenizer) -> tuple[bool, bool] | None:
    """Find out whether a control token swallows white space (left, right), by asking the tokenizer.

    Returns:
        None when the token and its neighbours cannot be tokenised separately at all.
    """

    def whole(text: str) -> list[int]:
        return tokenizer.tokenize(text, add_special=False, parse_special=True)

    def raw(text: str) -> list[int]:
        return tokenizer.tokenize(text, add_special=False, parse_special=False)

    left, right = whole("a \n" + control_text), whole(control_text + " \na")
    is_left_kept, is_right_kept = left == [*raw("a \n"), control_id], right == [control_id, *raw(" \na")]
    is_left_stripped, is_right_stripped = left == [*raw("a"), control_id], right == [control_id, *raw("a")]
    if not (is_left_kept or is_left_stripped) or not (is_right_kept or is_right_stripped):
        return None
    return not is_left_kept, not is_right_kept


def apply_strips(items: Iterable[Item], rules: dict[int, tuple[bool, bool]]) -> list[Item]:
    """Take away the white space that control tokens swallow."""
    result: list[Item] = []
    is_stripping = False
    for item in items:
        if isinstance(item, int):
            strips_left, is_stripping = rules[item]
            if strips_left and result and isinstance(result[-1], str):
                result[-1] = result[-1].rstrip(_SPACE)
            result.append(item)
        else:
            result.append(item.lstrip(_SPACE) if is_stripping else item)
            is_stripping = False
    return [item for item in result if item != ""]
