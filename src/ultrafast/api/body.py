"""Reads request bodies: whole, within the size limit, within the time limit, and only JSON."""

from __future__ import annotations

import asyncio

from ultrafast.api.errors import ApiError
from ultrafast.api.exchange import ClientGoneError, Exchange, Interruption
from ultrafast.api.header_text import header_text

_DISCARD_LIMIT_BYTES = 64 * 1024 * 1024
_DISCARD_TIMEOUT_S = 5.0
_MAX_LENGTH_DIGITS = 18


async def read_body(exchange: Exchange, max_body_bytes: int, timeout_s: float) -> bytes:
    """Return the whole body of a POST.

    Raises:
        ApiError: 411 no length, 413 too large (declared, or found while reading), 415 not JSON, 408 not there in time.
        ClientGoneError: the client left.
    """
    _check_headers(exchange, max_body_bytes)
    try:
        if exchange.is_body_here:
            body = await _read(exchange, max_body_bytes)
        else:
            async with asyncio.timeout(timeout_s):
                body = await _read(exchange, max_body_bytes)
    except TimeoutError:
        raise ApiError(
            408, "request_timeout", f"The request body did not arrive within {timeout_s:g} s.", closes_connection=True
        ) from None
    exchange.on_body_complete()
    return body


async def _read(exchange: Exchange, max_body_bytes: int) -> bytes:
    chunks: list[bytes] = []
    num_bytes = 0
    while True:
        message = await exchange.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError(Interruption.DISCONNECTED)
        chunk = message.get("body", b"")
        num_bytes += len(chunk)
        if num_bytes > max_body_bytes:
            raise _too_large(max_body_bytes)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _check_headers(exchange: Exchange, max_body_bytes: int) -> None:
    headers = exchange.headers
    length = headers.get(b"content-length")
    if length is None and b"transfer-encoding" not in headers:
        raise ApiError(411, "length_required", "The request has no body.", hint="send a JSON body with a content-length")
    if b"transfer-encoding" in headers and headers[b"transfer-encoding"].strip().lower() != b"chunked":
        raise ApiError(415, "unsupported_encoding", "The only transfer-encoding is chunked.", hint="send the body as it is")
    # Not `int` of whatever comes: Python refuses to read thousands of digits, zeros in front of a number included.
    digits = (length or b"").lstrip(b"0")
    if digits.isdigit() and (len(digits) > _MAX_LENGTH_DIGITS or int(digits) > max_body_bytes):
        raise _too_large(max_body_bytes)
    content_type, encoding = headers.get(b"content-type", b""), headers.get(b"content-encoding")
    if content_type != b"application/json" or encoding is not None:
        _check_media_type(content_type, b"identity" if encoding is None else encoding)


def _check_media_type(content_type: bytes, encoding: bytes) -> None:
    media, _, parameters = content_type.lower().partition(b";")
    media = media.strip()
    if media and media != b"application/json" and not (media.startswith(b"application/") and media.endswith(b"+json")):
        given = header_text(media)
        raise ApiError(
            415,
            "unsupported_media_type",
            f"The body must be JSON, but content-type says {given!r}.",
            hint="send the header 'content-type: application/json'",
        )
    charset = parameters.partition(b"charset=")[2].split(b";")[0].strip(b' "')
    if charset not in (b"", b"utf-8", b"utf8", b"us-ascii"):
        raise ApiError(415, "unsupported_charset", "The body must be UTF-8.", hint="leave the charset out")
    if encoding.strip().lower() not in (b"identity", b""):
        raise ApiError(415, "unsupported_encoding", "Compressed request bodies are not accepted.", hint="send the body as it is")


def _too_large(max_body_bytes: int) -> ApiError:
    return ApiError(
        413,
        "body_too_large",
        f"The request body is larger than {max_body_bytes} bytes.",
        hint="send less, or raise server.max_body_bytes",
        closes_connection=True,
    )


async def discard_body(exchange: Exchange) -> None:
    """Read and forget what is left of a body that was refused, within limits.

    Closing a connection with unread bytes makes the kernel reset it, and the client may then never see the answer.
    """
    num_bytes = 0
    try:
        async with asyncio.timeout(_DISCARD_TIMEOUT_S):
            while num_bytes <= _DISCARD_LIMIT_BYTES:
                message = await exchange.receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
                num_bytes += len(message.get("body", b""))
    except TimeoutError:
        return
