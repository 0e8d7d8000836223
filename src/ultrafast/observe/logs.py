"""Logs: to stderr, as text for people or as JSON lines for machines. One line per request, none per token.

A log line carries ids, numbers and names, never a prompt, an answer or a key. Fields come through `extra={"fields": {...}}`.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TextIO

ROOT_LOGGER = "ultrafast"
_MAX_CAUSES = 4
_MAX_FRAMES = 12
_QUIET_LOGGERS = ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio", "py.warnings")


def set_up_logging(level: str = "info", log_format: Literal["text", "json"] = "text", stream: TextIO | None = None) -> None:
    """Send the product's logs, and warnings of its libraries, to stderr. Calling it again replaces the set-up.

    Args:
        level: debug, info, warning or error.
        log_format: `text` or `json`.
        stream: somewhere else than stderr, for tests.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _TextFormatter())
    _attach(logging.getLogger(ROOT_LOGGER), handler, level.upper())
    logging.captureWarnings(True)
    for name in _QUIET_LOGGERS:
        _attach(logging.getLogger(name), handler, "WARNING")


def _attach(logger: logging.Logger, handler: logging.Handler, level: str) -> None:
    for old in list(logger.handlers):
        logger.removeHandler(old)
    logger.setLevel(level)
    # uvicorn's loggers form a tree of their own; one handler at its root is enough.
    logger.propagate = logger.name.startswith("uvicorn.")
    if not logger.propagate:
        logger.addHandler(handler)


def describe_failure(error: BaseException) -> str:
    """Name the class of an exception and where it was raised, and its causes. Never its text, which may quote a client.

    ZeroDivisionError at edge.py:68 _serve > generation.py:130 _pump < KeyError at body.py:31 _read
    """
    causes: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(causes) < _MAX_CAUSES:
        frames = traceback.extract_tb(cause.__traceback__)[-_MAX_FRAMES:]
        places = " > ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)
        causes.append(f"{type(cause).__qualname__} at {places or 'an unknown place'}")
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return " < ".join(causes)


def log_fields(logger: logging.Logger, level: int, message: str, fields: Mapping[str, Any]) -> None:
    """Write one line with named values. Fields that are None are left out."""
    if logger.isEnabledFor(level):
        logger.log(level, message, extra={"fields": {name: value for name, value in fields.items() if value is not None}})


class _TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z info ultrafast.api: message key=value ...`."""

    def format(self, record: logging.LogRecord) -> str:
        fields: Mapping[str, Any] = getattr(record, "fields", {})
        # Line breaks in a value would let it forge a log line.
        text = " ".join(
            [f"{_stamp(record)} {record.levelname.lower()} {record.name}: {record.getMessage()}"]
            + [f"{name}={_plain(value)}" for name, value in fields.items()]
        )
        text = text.replace("\r", "\\r").replace("\n", "\\n")
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": _stamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=True, default=str)


def _stamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    # A client's own request id must not look like a field of ours.
    return json.dumps(text) if "=" in text or '"' in text else text
