"""Breaking off a forward pass of the CPU backend from another thread.

libllama asks a callback, before each operation of the graph, whether to go on. A Python function there would take the
interpreter lock hundreds of times per step. So the callback is C's own `strlen`, and what it is called with is a flag of two
bytes: the empty string has length 0, "go on"; a string of one character has length 1, "stop".

    bool (*ggml_abort_callback)(void * data)        <-        size_t strlen(const char * s)

The result register is the same, and its lowest byte is the truth value.
"""

from __future__ import annotations

from typing import Any

from cffi import FFI

from ultrafast.engine.llama import abi

_ffi = FFI()
_ffi.cdef("size_t strlen(const char * s);")
_C_LIBRARY = _ffi.dlopen(None)


class InterruptFlag:
    """The flag of one context; must outlive it."""

    def __init__(self) -> None:
        self._flag = abi.ffi.new("char[2]")
        self.is_set = False

    @property
    def callback(self) -> Any:
        """For `llama_context_params.abort_callback`."""
        address = int(_ffi.cast("uintptr_t", _ffi.addressof(_C_LIBRARY, "strlen")))
        return abi.ffi.cast("void *", address)

    @property
    def data(self) -> Any:
        """For `llama_context_params.abort_callback_data`."""
        return self._flag

    def set(self) -> None:
        """Have the pass under way broken off, and any later one until `clear`. Any thread."""
        self.is_set = True
        self._flag[0] = b"!"

    def clear(self) -> None:
        self._flag[0] = b"\0"
        self.is_set = False
