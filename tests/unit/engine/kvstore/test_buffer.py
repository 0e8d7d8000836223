"""The memory of a run is its own, private, and asked for in huge pages."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest

from ultrafast.engine.kvstore.buffer import run_buffer

_MIB = 1024 * 1024


def test_it_has_the_size_that_was_asked_for_and_keeps_what_is_written() -> None:
    buffer = memoryview(run_buffer(5))
    buffer[:] = b"bytes"
    assert bytes(buffer) == b"bytes"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_is_private_memory_in_huge_pages() -> None:
    buffer = run_buffer(8 * _MIB)
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    assert "p" in _permissions(address)
    assert "hg" in _mapping(address)[-1].split()  # VmFlags: huge pages advised


def _permissions(address: int) -> str:
    return _mapping(address)[0].split()[1]


def _mapping(address: int) -> list[str]:
    """The lines of /proc/self/smaps on the mapping that holds an address: its head first, its flags last."""
    lines: list[str] = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            if lines:
                return lines
            begin, end = (int(part, 16) for part in head.split("-"))
            lines = [line] if begin <= address < end else []
        elif lines:
            lines.append(line)
    return lines
