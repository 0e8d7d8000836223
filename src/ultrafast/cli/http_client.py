"""A small blocking client for our own API: JSON requests and server-sent events, from the standard library.

Blocking on purpose: Ctrl-C raises in the read, the connection is closed, and the server aborts the request.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ultrafast.core.errors import ConfigError, UltrafastError

CONNECT_TIMEOUT_S = 10.0
_SILENCE_TIMEOUT_S = 120.0
"""The server sends keep-alive comments much more often than that; longer silence means it is gone."""
_QUEUE_TIMEOUT_S = 2 * 3600.0
"""No comment comes before a request has its place in the engine; no tier waits for one so long by default."""


class ServerError(UltrafastError):
    """The server cannot be reached, or answered with an error."""

    code = "server_error"


class ServerClient:
    """Talks to one server. A new connection per request: a chat has few, and an aborted one cannot be reused.

    `flag` is the option of the command that names the server, for hints.

    Raises:
        ConfigError: the URL is none, or not one of HTTP.
    """

    def __init__(self, url: str, api_key: str | None = None, *, flag: str = "--url") -> None:
        self._flag = flag
        parts = _split_url(url)
        self._url = f"{parts.scheme}://{parts.netloc}"
        self._is_tls = parts.scheme == "https"
        self._netloc = parts.netloc.rpartition("@")[2]
        self._base_path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {api_key}"} if api_key else {})

    def get(self, path: str) -> Any:
        """The JSON body of a GET.

        Raises:
            ServerError: no answer, or one that is not 200.
        """
        with closing(self._connect()) as connection:
            return json.loads(self._send(connection, "GET", path, None).read())

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON body of the answer to a POST.

        Raises:
            ServerError: no answer, or one that is not 200.
        """
        with closing(self._connect()) as connection:
            return json.loads(self._send(connection, "POST", path, body).read())

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The JSON values of an event stream, up to `[DONE]`. Leaving the iteration closes the connection.

        Raises:
            ServerError: no answer, an answer that is not 200, an error inside the stream, or a stream that just ends.
        """
        with closing(self._connect()) as connection:
            response = self._send(connection, "POST", path, body, _QUEUE_TIMEOUT_S)
            for data in read_events(response):
                if data == "[DONE]":
                    return
                event = json.loads(data)
                if "error" in event:
                    raise _as_error(event, response.status)
                yield event
        raise ServerError("The stream ended before the answer did.", hint="Look into the server's log.")

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        return kind(self._netloc, timeout=CONNECT_TIMEOUT_S)

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Any,
        head_timeout_s: float | None = None,
    ) -> http.client.HTTPResponse:
        """`head_timeout_s`: longest wait for the head of the answer, if it may be longer than all other silence."""
        data = json.dumps(body).encode() if body is not None else None
        try:
            connection.connect()
            sock = connection.sock
            sock.settimeout(head_timeout_s or _SILENCE_TIMEOUT_S)
            connection.request(method, self._base_path + path, data, self._headers)
            response = connection.getresponse()
            sock.settimeout(_SILENCE_TIMEOUT_S)
            if response.status != http.HTTPStatus.OK:
                raise _as_error(_parse(response.read()), response.status)
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(
                f"No answer from {self._url}: {error}.",
                hint=f"Is the server running? Start it with `ultrafast serve`, or name another one with {self._flag}.",
            ) from error
        return response


def _split_url(url: str) -> SplitResult:
    hint = "Write it like http://127.0.0.1:8080."
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        parts.port  # noqa: B018 - read to be checked
    except ValueError as error:
        raise ConfigError(f"{url!r} is not an HTTP URL: {error}.", hint=hint) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url!r} is not an HTTP URL.", hint=hint)
    return parts


def read_events(response: http.client.HTTPResponse) -> Iterator[str]:
    """The data of each server-sent event. Comments and other fields are skipped.

    Source: WHATWG HTML, section "Server-sent events", as far as our server uses it.
    """
    data: list[str] = []
    try:
        while line := response.readline():
            text = line.decode("utf-8").rstrip("\r\n")
            if text.startswith("data:"):
                data.append(text[5:].removeprefix(" "))
            elif not text and data:
                yield "\n".join(data)
                data = []
    except (OSError, http.client.HTTPException) as error:
        raise ServerError(f"The connection broke: {error}.", hint="Look into the server's log.") from error


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return {"error": {"message": body[:200].decode("utf-8", "replace")}}


def _as_error(body: Any, status: int) -> ServerError:
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return ServerError(f"HTTP {status}: {body}")
    return ServerError(f"HTTP {status}: {error.get('message')}", code=str(error.get("code")), hint=_hint_for(status, error))


def _hint_for(status: int, error: dict[str, Any]) -> str | None:
    if status == http.HTTPStatus.UNAUTHORIZED:
        return "Give a key with --api-key-file or ULTRAFAST_API_KEY."
    if status == http.HTTPStatus.NOT_FOUND:
        return "Without --model, the server's own model is used."
    hint = error.get("hint")
    return str(hint) if hint else None
