"""Errors as HTTP answers: status, OpenAI's body shape, and the headers that tell a client whether and when to come back.

The retry rules follow what OpenAI's Python SDK obeys (`openai/_base_client.py`, 1.x to 3.x): `x-should-retry` decides,
`retry-after-ms` is read before `retry-after`, and a wait above 120 s makes it give up.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from http import HTTPStatus
from typing import Any

import msgspec

from ultrafast.core.errors import (
    EngineFailedError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    SupersededError,
    UltrafastError,
    UnavailableError,
)
from ultrafast.core.events import DEAD_END

MAX_RETRY_AFTER_S = 120.0
Headers = list[tuple[bytes, bytes]]


class ErrorDetail(msgspec.Struct, omit_defaults=True):
    """What went wrong. `param` is the path of the field at fault, `code` a stable name; `hint` says what to do about it."""

    message: str
    type: str
    # OpenAI sends both always; `UNSET` is what omit_defaults leaves out.
    param: str | msgspec.UnsetType | None = msgspec.UNSET
    code: str | msgspec.UnsetType | None = msgspec.UNSET
    hint: str | None = None
    request_id: str | None = None
    estimated_recovery_ms: int | None = None


class ErrorBody(msgspec.Struct):
    """The body of every answer that is not a success."""

    error: ErrorDetail


class ApiError(Exception):
    """An error with an HTTP status that only the edge knows (path, method, body, key).

    Attributes:
        closes_connection: the rest of the request will not be read.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        hint: str | None = None,
        headers: Headers | None = None,
        closes_connection: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.hint = hint
        self.headers = headers or []
        self.closes_connection = closes_connection


_STATUS_BY_CODE = {"sla_unavailable": 422, DEAD_END: 422}
_STATUS_BY_CLASS: list[tuple[type[UltrafastError], int]] = [
    (ModelNotFoundError, 404),
    (InvalidRequestError, 400),
    (SupersededError, 409),
    (OverloadedError, 429),
    (UnavailableError, 503),
    (UltrafastError, 500),
]
_TYPE_BY_STATUS = {429: "rate_limit_error", 500: "server_error", 503: "service_unavailable_error"}
_NO_CAPACITY = {"model_loading": "model_loading", "shutting_down": "shutting_down", "engine_stopped": "engine_stopped"}
INTERNAL_MESSAGE = "The server failed to answer this request. Its log says why, under the request id."


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error; 500 for one that is no answer to a client at all."""
    if isinstance(error, ApiError):
        return error.status
    if isinstance(error, UltrafastError):
        by_code = _STATUS_BY_CODE.get(error.code)
        return by_code or next(status for kind, status in _STATUS_BY_CLASS if isinstance(error, kind))
    return 500


def retry_after_s(error: Exception) -> float | None:
    """Return when to come back, seconds, or None when the error is not about time."""
    return error.retry_after_s if isinstance(error, OverloadedError | UnavailableError) else None


def error_detail(error: Exception, request_id: str) -> ErrorDetail:
    """Describe an error in OpenAI's shape. Errors that are not meant for clients show nothing of their text."""
    status = status_of(error)
    kind = _TYPE_BY_STATUS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    if not isinstance(error, ApiError | UltrafastError):
        return ErrorDetail(INTERNAL_MESSAGE, kind, None, "internal_error", request_id=request_id)
    wait_s = retry_after_s(error)
    return ErrorDetail(
        error.message,
        kind,
        error.param,
        error.code,
        hint=error.hint,
        request_id=request_id,
        estimated_recovery_ms=None if wait_s is None else math.ceil(wait_s * 1000),
    )


def error_headers(error: Exception) -> Headers:
    """Return the headers that go with an error beside the usual ones."""
    headers = list(error.headers) if isinstance(error, ApiError) else []
    if isinstance(error, ApiError) and error.closes_connection:
        headers.append((b"connection", b"close"))
    wait_s = retry_after_s(error)
    if wait_s is not None:
        shown_s = min(max(wait_s, 0.001), MAX_RETRY_AFTER_S)
        headers.append((b"retry-after", str(math.ceil(shown_s)).encode()))
        headers.append((b"retry-after-ms", str(math.ceil(shown_s * 1000)).encode()))
    drop_reason = _drop_reason(error)
    if drop_reason is not None:
        headers.append((b"x-ultrafast-drop-reason", drop_reason.encode()))
    # A request that took the engine down, or a wait that no client sits out: trying again does not help.
    if isinstance(error, EngineFailedError | SupersededError) or (wait_s is not None and wait_s > MAX_RETRY_AFTER_S):
        headers.append((b"x-should-retry", b"false"))
    return headers


def _drop_reason(error: Exception) -> str | None:
    """From a closed list: `core.events.DropReason`, or why there is no capacity at all."""
    if isinstance(error, UnavailableError):
        return _NO_CAPACITY.get(error.code, "no_capacity")
    if isinstance(error, OverloadedError):
        return error.drop_reason or "busy"
    return error.drop_reason if isinstance(error, UltrafastError) else None


def error_body(error: Exception, request_id: str) -> bytes:
    """Return the JSON body of an error answer."""
    return msgspec.json.encode(ErrorBody(error_detail(error, request_id)))


def status_phrase(status: int) -> str:
    """Return the standard phrase of a status, for documents."""
    return HTTPStatus(status).phrase


def lower_case_hint(given: Any, allowed: Collection[str]) -> str | None:
    """Return how a value is spelled that is right but for its case: all of ours and OpenAI's are in lower case."""
    text = given.strip().lower() if isinstance(given, str) else None
    return f"values are written in lower case: {text}" if text in allowed else None


def describe(value: Any, limit: int = 60) -> str:
    """Return a given JSON value as text for an error message, cut to `limit` characters; never raises."""
    if isinstance(value, float) and not math.isfinite(value):
        return "a number out of range"
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError, OverflowError):
        text = type(value).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."
