"""The bytes of KV: a piece of a sequence out of the context and back in, through a temporary sequence.

    save [a, b)   seq -> cp -> TMP [a, b) -> get_data -> bytes
    load [a, b)   bytes -> set_data -> TMP -> cp -> seq [0, b)        then: does the memory say that seq is [0, b)?

Where sequences cannot be cut (recurrent state, a sliding window that is not kept whole) a sequence moves as a whole, directly.
"""

from __future__ import annotations

import mmap
from typing import Any

from ultrafast.engine.kvstore.buffer import run_buffer
from ultrafast.engine.llama import abi


class KvState:
    """Saves and loads pieces of sequences of one context.

    Args:
        temporary_id: a sequence id that nobody else uses.
        can_trim: sequences can be cut at any token.
    """

    def __init__(self, c: Any, context: Any, temporary_id: int, *, can_trim: bool) -> None:
        self._c = c
        self._context = context
        self._memory = c.llama_get_memory(context)
        self._temporary_id = temporary_id
        self._can_trim = can_trim

    def save(self, seq_id: int, begin: int, end: int) -> memoryview | None:
        """Return the state of tokens [begin, end), or None when libllama does not give it."""
        if not self._can_trim:
            return self._read(seq_id)
        self._c.llama_memory_seq_cp(self._memory, seq_id, self._temporary_id, begin, end)
        try:
            if not self._spans(self._temporary_id, begin, end):
                return None
            return self._read(self._temporary_id)
        finally:
            self._clear_temporary()

    def load(self, seq_id: int, begin: int, end: int, data: memoryview) -> bool:
        """Append [begin, end) to a sequence that holds [0, begin). False: nothing is sure, the caller empties the sequence."""
        if not self._can_trim:
            return begin == 0 and self._write(seq_id, data) and self._last(seq_id) == end - 1
        try:
            if not self._write(self._temporary_id, data):
                return False
            first, last = self._first(self._temporary_id), self._last(self._temporary_id)
            if not (0 <= first <= begin and last >= end - 1):
                return False
            self._c.llama_memory_seq_cp(self._memory, self._temporary_id, seq_id, begin, end)
        finally:
            self._clear_temporary()
        return self._spans(seq_id, 0, end)

    def length(self, seq_id: int) -> int:
        """Tokens of a sequence that begins at 0."""
        return self._last(seq_id) + 1

    def _read(self, seq_id: int) -> memoryview | None:
        size = int(self._c.llama_state_seq_get_size_ext(self._context, seq_id, 0))
        if size == 0:
            return None
        buffer = run_buffer(size)
        written = int(self._c.llama_state_seq_get_data_ext(self._context, _pointer(buffer), size, seq_id, 0))
        return memoryview(buffer) if written == size else None

    def _write(self, seq_id: int, data: memoryview) -> bool:
        return int(self._c.llama_state_seq_set_data_ext(self._context, _pointer(data), len(data), seq_id, 0)) == len(data)

    def _clear_temporary(self) -> None:
        self._c.llama_memory_seq_rm(self._memory, self._temporary_id, -1, -1)

    def _spans(self, seq_id: int, begin: int, end: int) -> bool:
        return self._first(seq_id) == begin and self._last(seq_id) == end - 1

    def _first(self, seq_id: int) -> int:
        return int(self._c.llama_memory_seq_pos_min(self._memory, seq_id))

    def _last(self, seq_id: int) -> int:
        return int(self._c.llama_memory_seq_pos_max(self._memory, seq_id))


def _pointer(buffer: mmap.mmap | memoryview) -> Any:
    return abi.ffi.from_buffer("uint8_t[]", buffer)
