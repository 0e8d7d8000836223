"""The files of the log: append to one, set it aside when it is full, keep a few.

requests.jsonl      the newest
requests.jsonl.1    the one before ... up to .N, which is deleted next
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ultrafast.observe.request_log.record import LogHead

_TAIL_BYTES = 64 * 1024
_HEAD = msgspec.json.encode(LogHead()) + b"\n"


class LogFiles:
    """Appends whole lines. Not thread-safe: one thread writes.

    Args:
        max_bytes: of one file.
        num_files: beside the newest.
    """

    def __init__(self, path: Path, max_bytes: int, num_files: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._num_files = num_files
        self._descriptor: int | None = None
        self._num_bytes = 0

    def append(self, lines: bytes) -> None:
        """Write whole lines. After an error nothing of them counts; the next call starts at a line of its own again.

        Raises:
            OSError: the disk is full, the folder is gone, ...
        """
        if self._descriptor is not None and self._num_bytes + len(lines) > self._max_bytes and self._num_bytes > len(_HEAD):
            self.close()
            self._rotate()
        if self._descriptor is None:
            self._open()
        assert self._descriptor is not None, "just opened"
        try:
            _write_all(self._descriptor, lines)
        except OSError:
            self._undo()
            raise
        self._num_bytes += len(lines)

    def close(self) -> None:
        """Close the file; the next `append` opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._num_bytes = _cut_torn_line(self._descriptor)
        if self._num_bytes == 0:
            try:
                _write_all(self._descriptor, _HEAD)
            except OSError:
                self._undo()
                raise
            self._num_bytes = len(_HEAD)
        elif self._num_bytes >= self._max_bytes:
            self.close()
            self._rotate()
            self._open()

    def _undo(self) -> None:
        """Cut off half a line; whatever becomes of that, open the file anew."""
        assert self._descriptor is not None, "open"
        try:
            os.ftruncate(self._descriptor, self._num_bytes)
        finally:
            self.close()

    def _rotate(self) -> None:
        for number in range(self._num_files, 0, -1):
            source = self._numbered(number - 1)
            if source.exists():
                source.replace(self._numbered(number))
        if self._num_files == 0:
            self._path.unlink(missing_ok=True)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _cut_torn_line(descriptor: int) -> int:
    """Cut off a last line without an end (the machine lost power), lest the next one be glued to it; returns the size."""
    end = os.fstat(descriptor).st_size
    while end:
        begin = max(0, end - _TAIL_BYTES)
        newline = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            end = begin + newline + 1
            break
        end = begin
    if end < os.fstat(descriptor).st_size:
        os.ftruncate(descriptor, end)
    return end
