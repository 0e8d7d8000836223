"""Prompts as a simple script makes them: the tokenizer is loaded for each. What a warm one saves is measured against this.

Only the loading is added: rendering, and what is read from the vocabulary in Python, stay warm as in a script.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Protocol

from ultrafast.serving.control_tokens import Item
from ultrafast.serving.ports import Tokenizer
from ultrafast.serving.prompts import PromptBuilder
from ultrafast.serving.segments import SegmentCache, SegmentTokenizer

_ALWAYS_LONG_CHARS = 64 * 1024
"""Counted on top of each prompt's text, so that the loading never happens on the event loop."""


class ClosableTokenizer(Tokenizer, Protocol):
    """A tokenizer that somebody has to give back."""

    def close(self) -> None:
        """Free it. No method may be called after this."""


class ReloadingPromptBuilder(PromptBuilder):
    """A builder that tokenises each chat prompt with a tokenizer of its own. Any thread may call."""

    def __init__(
        self, tokenizer: Tokenizer, template_source: str | None, cache: SegmentCache, load: Callable[[], ClosableTokenizer]
    ) -> None:
        """`load` opens the same vocabulary again; its errors are those of the prompts."""
        super().__init__(tokenizer, template_source, cache)
        self._load = load

    def num_uncached_chars(self, items: list[Item]) -> int:
        return _ALWAYS_LONG_CHARS + super().num_uncached_chars(items)

    def tokens(self, items: list[Item]) -> list[int]:
        with closing(self._load()) as tokenizer:
            return SegmentTokenizer(tokenizer, self._control, self._cache).tokens(items)
