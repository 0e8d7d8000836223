r"""Where a long text may be cut so that libllama makes the same tokens of its parts as of the whole.

Before it tokenises, libllama cuts a text into fragments at its special tokens, those with the longest text first, and walks the
list of fragments from its begin for each it finds (`tokenizer_st_partition`, src/llama-vocab.cpp): the square of their number,
16 s for 80,000. In parts that hold a few hundred it is their number:

    whole    Hi<|im_end|>\n<|im_start|>you<|im_end|>
    parts    Hi<|im_end|>                               each begins with the token that the one before ends with,
               <|im_end|>\n<|im_start|>                 which is counted once: so libllama sees on both sides
                           <|im_start|>you<|im_end|>    what this token does to its neighbours

Nothing is merged across a special token that is taken, and one is taken for certain where no other special text that is at least
as long overlaps it: shorter ones are looked for later. Pure; any thread may call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ultrafast.core.errors import InvalidRequestError

MAX_PER_PART = 512
"""Special texts in a part; the search for a place to cut begins here."""
MAX_UNCUT = 16 * 1024
"""Special texts in a part where no such place is found: libllama takes about a second for them."""
_MAX_TRIES = 32
"""Places looked at before it goes on by `MAX_PER_PART`: a look takes as long as finding some hundred texts."""
_SPACE = b" \t\n\v\f\r"


class SpecialTexts:
    """The texts of the special tokens that libllama looks for.

    Args:
        texts: their exact bytes.
        is_stripping: some of them swallow white space beside them.
    """

    def __init__(self, texts: Iterable[bytes], *, is_stripping: bool = False) -> None:
        self._texts = frozenset(text for text in texts if text)
        self._is_stripping = is_stripping
        self._lengths = sorted({len(text) for text in self._texts}, reverse=True)
        lengths: dict[int, set[int]] = {}
        for text in self._texts:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths_by_first = {first: sorted(known, reverse=True) for first, known in lengths.items()}
        self._first = re.compile(b"[%s]" % re.escape(bytes(lengths))) if lengths else None

    def parts(self, data: bytes) -> list[bytes]:
        """Return the text in parts; each but the first begins with the special token that ends the one before.

        Raises:
            InvalidRequestError: more than `MAX_UNCUT` special texts, and no place to cut found among them.
        """
        if sum(data.count(first) for first in self._lengths_by_first) <= MAX_PER_PART:
            return [data]
        parts: list[bytes] = []
        part_begin = num_texts = 0
        for begin, end in self._found(data):
            num_texts += 1
            is_try = num_texts >= MAX_PER_PART and num_texts % MAX_PER_PART < _MAX_TRIES
            if is_try and self._is_certain(data, begin, end):
                parts.append(data[part_begin:end])
                part_begin, num_texts = begin, 1
            elif num_texts > MAX_UNCUT:
                raise InvalidRequestError(
                    f"the text has more than {MAX_UNCUT} special tokens of this model that run into each other",
                    hint="send it in parts",
                )
        return [*parts, data[part_begin:]]

    def _found(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Begin and end of special texts from left to right, of those that begin at the same place the longest.

        Every one that libllama takes is among them or overlaps one of them.
        """
        first, texts, lengths_by_first = self._first, self._texts, self._lengths_by_first
        position = 0
        while first is not None and (found := first.search(data, position)):
            begin = position = found.start()
            for length in lengths_by_first[data[begin]]:
                text = data[begin : begin + length]  # shorter at the end of the data
                if text in texts:
                    position = begin + len(text)
                    yield begin, position
                    break
            else:
                position += 1

    def _is_certain(self, data: bytes, begin: int, end: int) -> bool:
        """Whether libllama takes the special token here whatever else it takes."""
        if self._is_stripping and (data[begin] in _SPACE or data[end - 1] in _SPACE):
            return False  # a neighbour may swallow a part of it
        for length in self._lengths:
            if length < end - begin:
                return True
            for other in range(max(0, begin - length + 1), min(end, len(data) - length + 1)):
                if data[other : other + length] in self._texts and (other, length) != (begin, end - begin):
                    return False
        return True
