r"""Words whose tokens are remembered: a text is rarely known as a whole, nearly all of its words are.

    "user\nTell me, please" -> "user" | "\nTell" | " me" | ", please"

Byte-level BPE merges what stands side by side. Where no token of the vocabulary reaches across a border, and the pre-tokeniser
ends a match whatever stands around, both sides become the same tokens together or apart. Between a letter and one of ` \n,.:;!?`
all of libllama's do (`llm_tokenizer_bpe`, src/llama-vocab.cpp), but for those of vocabularies that have tokens across words; none
looks back, or ahead from a letter. A call of libllama costs as much as a dozen words, so that those not known share one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from typing import cast

from ultrafast.serving.ports import Tokenizer

MAX_CHARS = 4096
"""Longer texts are tokenised as a whole: libllama leaves the interpreter to others meanwhile, what is done here does not."""
MAX_WORD_CHARS = 32
_WORD_BYTES = 256
"""Of a remembered word: its text, a tuple of tokens, its place in a dictionary."""
_BORDER = re.compile(r"(?<=[A-Za-z])(?=[ \n,.:;!?])")
_ACROSS = re.compile(rb"[A-Za-z][ \n,.:;!?]")
_PROBE = "Two words, three\nfour"

_Tokens = tuple[int, ...]


class WordTokenizer:
    """Tokenises mere text. Any thread may call.

    Words live in two generations. When the newer one is full it becomes the older one, of which only what is met again goes on.
    """

    def __init__(self, tokenizer: Tokenizer, max_bytes: int) -> None:
        """`max_bytes`: for the words. Without room for any, or with a vocabulary that cannot be cut, texts are taken whole."""
        self._tokenizer = tokenizer
        self._max_words = max_bytes // (2 * _WORD_BYTES) if max_bytes and _can_cut(tokenizer) else 0
        self._newer: dict[str, _Tokens] = {}
        self._older: dict[str, _Tokens] = {}

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of a text; control tokens in it are text, too.

        Raises:
            InvalidRequestError: see `Tokenizer.tokenize`.
        """
        if not self._max_words or len(text) > MAX_CHARS:
            return _whole(self._tokenizer, text)
        words = _BORDER.split(text)
        parts = list(map(self._newer.get, words))
        if None in parts:
            found = self._find(dict.fromkeys(word for word, part in zip(words, parts, strict=True) if part is None))
            if found is None:
                return _whole(self._tokenizer, text)
            parts = [found[word] if part is None else part for word, part in zip(words, parts, strict=True)]
        return list(chain.from_iterable(cast("list[_Tokens]", parts)))

    def _find(self, words: Iterable[str]) -> dict[str, _Tokens] | None:
        """Return the tokens of words that are not in the newer generation, which they join; None: they cannot be told apart."""
        older = self._older
        found = {word: older[word] for word in words if word in older}
        unknown = [word for word in words if word not in found]
        if unknown:
            learnt = self._learn(unknown)
            if learnt is None:
                return None
            found |= learnt
        newer = self._newer
        newer.update((word, tokens) for word, tokens in found.items() if len(word) <= MAX_WORD_CHARS)
        if len(newer) >= self._max_words:
            # Two threads may both do this: then some words have to be learnt again.
            self._older, self._newer = newer, {}
        return found

    def _learn(self, words: list[str]) -> dict[str, _Tokens] | None:
        """Tokenise words of a text at once, in its order: all but the last end in a letter, so that borders stay borders."""
        tokens = _whole(self._tokenizer, "".join(words))
        pieces = self._tokenizer.pieces
        learnt: dict[str, _Tokens] = {}
        begin = end = 0
        for word in words:
            num_bytes = len(word.encode("utf-8", "replace"))
            while num_bytes > 0 and end < len(tokens):
                num_bytes -= len(pieces[tokens[end]])
                end += 1
            if num_bytes:
                return None
            learnt[word] = tuple(tokens[begin:end])
            begin = end
        return learnt if end == len(tokens) else None


def _can_cut(tokenizer: Tokenizer) -> bool:
    """Whether this is a byte-level BPE none of whose tokens reaches across a border."""
    if tokenizer.metadata.get("tokenizer.ggml.model") != "gpt2" or _ACROSS.search(b"\0".join(tokenizer.pieces)):
        return False
    # A vocabulary that puts something in front of every text, or behind it, is none to cut either.
    words = _BORDER.split(_PROBE)
    return _whole(tokenizer, _PROBE) == [token for word in words for token in _whole(tokenizer, word)]


def _whole(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.tokenize(text, add_special=False, parse_special=False)
