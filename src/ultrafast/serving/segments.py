"""Tokens of raw text segments, remembered: an unchanged part of a conversation is never tokenised twice."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from ultrafast.core.errors import InvalidRequestError
from ultrafast.serving.control_tokens import ControlTokens, Item, apply_strips, strip_rules
from ultrafast.serving.ports import Tokenizer
from ultrafast.serving.words import WordTokenizer

DEFAULT_CACHE_BYTES = 32 * 1024 * 1024
_ENTRY_OVERHEAD_BYTES = 200


@dataclass(frozen=True, slots=True)
class SegmentStats:
    """Counters since the start. `num_hit_tokens` is how many tokens came out of the cache."""

    num_hits: int
    num_misses: int
    num_hit_tokens: int
    num_missed_tokens: int
    num_entries: int
    size_bytes: int


class SegmentCache:
    """Least-recently-used map from text to tokens, bounded by its size in bytes. Thread-safe."""

    def __init__(self, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._size_bytes = 0
        self._hits = self._misses = self._hit_tokens = self._missed_tokens = 0

    def __contains__(self, text: str) -> bool:
        return text in self._entries

    def num_missing_chars(self, items: Sequence[Item]) -> int:
        """Return how long the texts among the items are together that are not known."""
        entries, num_chars = self._entries, 0
        for item in items:
            if isinstance(item, str) and item not in entries:
                num_chars += len(item)
        return num_chars

    def get(self, text: str) -> tuple[int, ...] | None:
        """Return the tokens of a text if they are known."""
        with self._lock:
            tokens = self._entries.get(text)
            if tokens is None:
                return None
            self._entries.move_to_end(text)
            self._hits += 1
            self._hit_tokens += len(tokens)
            return tokens

    def put(self, text: str, tokens: tuple[int, ...]) -> None:
        """Remember tokens that had to be computed. A text that would take an eighth of the cache is not kept."""
        size_bytes = _entry_bytes(text, tokens)
        with self._lock:
            self._misses += 1
            self._missed_tokens += len(tokens)
            if size_bytes > self.max_bytes // 8 or text in self._entries:
                return
            self._entries[text] = tokens
            self._size_bytes += size_bytes
            while self._size_bytes > self.max_bytes:
                self._size_bytes -= _entry_bytes(*self._entries.popitem(last=False))

    @property
    def stats(self) -> SegmentStats:
        with self._lock:
            return SegmentStats(
                self._hits, self._misses, self._hit_tokens, self._missed_tokens, len(self._entries), self._size_bytes
            )


def _entry_bytes(text: str, tokens: tuple[int, ...]) -> int:
    return _ENTRY_OVERHEAD_BYTES + 4 * len(text) + 8 * len(tokens)


class SegmentTokenizer:
    """Tokenises a prompt that was cut at its control tokens. Any thread may call.

    A control token is the one border that no tokenizer merges across, so prompts are cut there; see `words` for what is between.
    """

    def __init__(
        self, tokenizer: Tokenizer, control: ControlTokens, cache: SegmentCache, words: WordTokenizer | None = None
    ) -> None:
        """`words`: for the segments that are not in the cache; None = all of such a segment is tokenised."""
        self._tokenizer = tokenizer
        self._words = words or WordTokenizer(tokenizer, max_bytes=0)
        self._control = control
        self._text_of = {token: text for text, token in control.ids.items()}
        self._cache = cache
        self._strip_rules: dict[int, tuple[bool, bool]] = {}

    def num_uncached_chars(self, items: Sequence[Item]) -> int:
        """Return how much text is still to be tokenised: what `tokens` will cost."""
        return self._cache.num_missing_chars(items)

    def tokens(self, items: Sequence[Item]) -> list[int]:
        """Return the tokens of a prompt, the model's BOS in front where it expects one and the template wrote none.

        Raises:
            InvalidRequestError: raw text came out as a control token, and would do so in any other way of tokenising it.
        """
        self._learn_strip_rules(items)
        result: list[int] = []
        for item in apply_strips(items, self._strip_rules):
            if isinstance(item, int):
                result.append(item)
            else:
                result.extend(self._raw_tokens(item))
        bos = self._tokenizer.bos
        if self._tokenizer.adds_bos and bos is not None and (not result or result[0] != bos):
            result.insert(0, bos)
        return result

    def _learn_strip_rules(self, items: Sequence[Item]) -> None:
        for item in items:
            if isinstance(item, int) and item not in self._strip_rules:
                rules = strip_rules(item, self._text_of[item], self._tokenizer)
                if rules is None:
                    raise InvalidRequestError(
                        f"the tokenizer does not treat {self._text_of[item]!r} as a control token of its own",
                        param="messages",
                        hint="use /v1/completions, or a chat template without this token",
                    )
                self._strip_rules[item] = rules

    def _raw_tokens(self, text: str) -> tuple[int, ...]:
        tokens = self._cache.get(text)
        if tokens is None:
            tokens = tuple(self._words.tokens(text))
            if not self._control.forbidden_ids.isdisjoint(tokens):
                raise InvalidRequestError("the messages contain text that this model reads as a control token", param="messages")
            self._cache.put(text, tokens)
        return tokens
