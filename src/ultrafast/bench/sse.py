"""Server-sent events out of bytes that arrive in any pieces. Pure: it neither reads nor stamps.

Source: WHATWG HTML, "Server-sent events", section "Interpreting an event stream".
"""

from __future__ import annotations

_BOM = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 16 * 1024 * 1024


class SseError(ValueError):
    """An event is larger than any answer can be."""


class SseParser:
    """Turns pieces into the data of complete events.

    An event is complete at the byte that ends its blank line, also when that is a lone carriage return: waiting for the
    line feed that may follow would give the event the stamp of a later read.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._skips_line_feed = False
        self._is_at_start = True
        self.last_comment = b""
        """Text of the last comment, without the colon."""

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that `piece` completes, in order; comments, empty events and other fields give none.

        Raises:
            SseError: an unfinished event has grown beyond 16 MiB.
        """
        if not piece:
            return []
        if self._skips_line_feed and piece.startswith(b"\n"):
            piece = piece[1:]
        self._skips_line_feed = piece.endswith(b"\r")
        buffer = self._rest + piece
        if self._is_at_start:
            if len(buffer) < len(_BOM) and _BOM.startswith(buffer):
                self._rest = buffer
                return []
            buffer = buffer.removeprefix(_BOM)
            self._is_at_start = False
        if b"\r" in buffer:
            buffer = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = buffer.split(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES or len(self._data) > MAX_EVENT_BYTES:
            raise SseError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return self._events(lines)

    def _events(self, lines: list[bytes]) -> list[bytes]:
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                start = 6 if line[5:6] == b" " else 5
                self._data.append(line[start:])
            elif line.startswith(b":"):
                self.last_comment = line[1:].strip()
            elif line == b"data":
                self._data.append(b"")
            elif not line and self._data:
                data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                self._data = []
                if data:
                    events.append(data)
        return events
