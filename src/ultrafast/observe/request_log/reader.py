"""Reads a request log: a file, or a folder's files together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from ultrafast.core.errors import UltrafastError
from ultrafast.observe.request_log.record import FORMAT, VERSION, LogHead, LogRecord

_HINT = "It must be a file that `request_log.path` names."


class RequestLogError(UltrafastError):
    """A request log cannot be read."""

    code = "invalid_request_log"


def is_request_log(first_line: str) -> bool:
    """Whether a file that begins with this line is a request log."""
    return f'"{FORMAT}"' in first_line


def read_head(path: Path) -> LogHead:
    """What the first line says.

    Raises:
        RequestLogError: the file is none, or of another version.
    """
    try:
        with path.open("rb") as file:
            head = msgspec.json.decode(file.readline(), type=LogHead)
    except OSError as error:
        raise RequestLogError(f"{path} cannot be read: {error.strerror}.", hint=_HINT) from error
    except msgspec.DecodeError as error:
        raise _bad(path, 1, str(error)) from error
    if head.format != FORMAT or head.version != VERSION:
        raise _bad(path, 1, f"this is {head.format!r}, version {head.version}")
    return head


def read_records(path: Path) -> Iterator[LogRecord]:
    """Every request, in the order in which they ended. A last line without an end (the server was killed) is left out.

    Raises:
        RequestLogError: a line that is none.
    """
    read_head(path)
    decoder = msgspec.json.Decoder(LogRecord)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1 or not line.endswith(b"\n"):
                continue
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError as error:
                raise _bad(path, number, str(error)) from error


def _bad(path: Path, line: int, reason: str) -> RequestLogError:
    return RequestLogError(f"{path}, line {line}: {reason}.", hint=_HINT)
