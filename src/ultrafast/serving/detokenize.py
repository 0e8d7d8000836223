"""Tokens to text, one at a time. A character may be spread over tokens: its bytes wait until it is whole."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Mapping, Sequence


class Detokenizer:
    """Turns the tokens of one choice into text; the concatenation of all parts is exactly the decoded whole.

    Constant work per token: it looks at the new piece and at most three waiting bytes. Bytes that can never become a character
    become U+FFFD at once; an incomplete tail does only at the end (`finish`).
    """

    __slots__ = ("_overrides", "_pieces", "_waiting")

    def __init__(self, pieces: Sequence[bytes], overrides: Mapping[int, bytes] | None = None) -> None:
        """`overrides`: token id -> bytes of control tokens that are to appear as text (tool-call markers)."""
        self._pieces = pieces
        self._overrides = overrides or None
        self._waiting = b""

    def add(self, token: int) -> str:
        """Return the text that this token completes, often "" in the middle of a character."""
        piece = self._pieces[token]
        if self._overrides is not None:
            piece = self._overrides.get(token, piece)
        if self._waiting:
            piece = self._waiting + piece
        text, num_used = utf_8_decode(piece, "replace", False)
        self._waiting = piece[num_used:]
        return text

    def finish(self) -> str:
        """Return what was still waiting: U+FFFD for an incomplete character, else ""."""
        waiting, self._waiting = self._waiting, b""
        return waiting.decode("utf-8", "replace")


def decode_tokens(tokens: Sequence[int], pieces: Sequence[bytes]) -> str:
    """Decode all tokens at once; control tokens add nothing."""
    return b"".join([pieces[token] for token in tokens]).decode("utf-8", "replace")
