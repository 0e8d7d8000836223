"""HTTP/1.1 on bare asyncio transports: every read is stamped the moment it arrives, connections are kept and never capped.

An HTTP library hands out bytes after its own queues and tasks; at 32 streams that alone adds 100 ms to the first token. Here
`data_received` takes the stamp and then parses (httptools: a few microseconds), so that the stamp is the socket read.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from ultrafast.core.errors import ConfigError

NsClock = Callable[[], int]
"""Nanoseconds, monotonic; `time.perf_counter_ns` outside tests."""


class BadUrlError(ConfigError):
    """The address of the server is no HTTP URL."""

    code = "invalid_url"


class Sink(Protocol):
    """Receives one response. Called from the event loop; must not raise and must not block.

    Order: `on_head`, `on_body`*, then exactly one of `on_end` and `on_broken` (which may also come first).
    """

    def on_head(self, status: int, headers: dict[str, str], stamp_ns: int) -> None:
        """Status and headers; names in lower case, the last of repeated ones, `server-timing` joined by commas."""

    def on_body(self, piece: bytes, stamp_ns: int) -> None:
        """Bytes of the body, without transfer coding. Pieces with the same stamp came out of the same read."""

    def on_end(self, stamp_ns: int) -> None:
        """The body is complete."""

    def on_broken(self, reason: str, stamp_ns: int) -> None:
        """The connection ended, or sent no HTTP, before the body was complete."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is. `base_path` has neither a trailing slash nor `/v1`."""

    host: str
    port: int
    is_tls: bool
    base_path: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read `http(s)://host[:port][/path][/v1]`; without a scheme, http.

        Raises:
            BadUrlError
        """
        hint = "Write it like http://127.0.0.1:8080."
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise BadUrlError(f"{url!r} is not an HTTP URL: {error}.", hint=hint) from error
        if parts.scheme not in ("http", "https") or not host:
            raise BadUrlError(f"{url!r} is not an HTTP URL.", hint=hint)
        if parts.username is not None:
            raise BadUrlError("The URL holds a user name or password.", hint="Give a key with --api-key-file.")
        is_tls = parts.scheme == "https"
        return cls(host, port or (443 if is_tls else 80), is_tls, parts.path.rstrip("/").removesuffix("/v1"))

    @property
    def host_header(self) -> str:
        """`host:port`, the port left out where it is the usual one."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == (443 if self.is_tls else 80) else f"{name}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.host_header}{self.base_path}"


class Connection(asyncio.Protocol):
    """One connection, one response at a time. Made and used on one event loop."""

    def __init__(self, clock: NsClock) -> None:
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._reader: _ResponseReader | None = None
        self.is_open = False

    def send(self, request: bytes, sink: Sink) -> int:
        """Write a whole request; the response goes to `sink`. Returns the stamp taken right before the first byte.

        The connection must be open and idle.
        """
        assert self._transport is not None, "never connected"
        assert self._reader is None, "a response is still under way"
        self._reader = _ResponseReader(sink)
        stamp_ns = self._clock()
        self._transport.write(request)
        return stamp_ns

    @property
    def is_idle(self) -> bool:
        """Open, with no response under way."""
        return self.is_open and self._reader is None

    def abort(self) -> None:
        """Close at once; the sink hears nothing any more."""
        self.is_open, self._reader = False, None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an isinstance check: uvloop's transports do not derive from asyncio's.
        self._transport, self.is_open = cast("asyncio.Transport", transport), True

    def data_received(self, data: bytes) -> None:
        stamp_ns = self._clock()
        reader = self._reader
        if reader is None:
            self.abort()
            return
        try:
            reader.feed(data, stamp_ns)
        except httptools.HttpParserError as error:
            self.abort()
            reader.sink.on_broken(f"no HTTP/1.1: {error}", stamp_ns)
            return
        if reader.is_complete:
            self._reader = None
            if not reader.keeps_alive:
                self.abort()
            reader.sink.on_end(stamp_ns)

    def connection_lost(self, error: Exception | None) -> None:
        stamp_ns = self._clock()
        self.is_open = False
        reader, self._reader = self._reader, None
        if reader is None:
            return
        if error is None and reader.ends_with_connection:
            reader.sink.on_end(stamp_ns)
        else:
            reader.sink.on_broken(f"connection lost: {error}" if error else "the server closed the connection", stamp_ns)


class _ResponseReader:
    """Feeds one response through httptools, whose callbacks have fixed names."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.is_complete = False
        self.keeps_alive = False
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._is_final = False
        self._stamp_ns = 0

    @property
    def ends_with_connection(self) -> bool:
        """The body has no length of its own: the end of the connection is its end."""
        return self._is_final and not ("content-length" in self._headers or "transfer-encoding" in self._headers)

    def feed(self, data: bytes, stamp_ns: int) -> None:
        self._stamp_ns = stamp_ns
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        if key == "server-timing" and key in self._headers:
            text = f"{self._headers[key]}, {text}"
        self._headers[key] = text

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._is_final = status >= 200
        if self._is_final:
            self.keeps_alive = self._parser.should_keep_alive()
            self.sink.on_head(status, self._headers, self._stamp_ns)
        else:
            self._headers = {}

    def on_body(self, body: bytes) -> None:
        self.sink.on_body(body, self._stamp_ns)

    def on_message_complete(self) -> None:
        self.is_complete = self._is_final


@dataclass(slots=True)
class ConnectionPool:
    """Open connections to one server: as many as are asked for at once, the last used first.

    There is no cap: a hidden one would queue requests inside the client and bill the wait to the server.
    """

    address: Address
    clock: NsClock
    tls: ssl.SSLContext | None = None
    _idle: list[Connection] = field(default_factory=list)
    num_opened: int = 0

    async def take(self) -> tuple[Connection, bool]:
        """An idle connection, or a new one (True). Raises OSError (ssl.SSLError is one) when none can be made."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_idle:
                return connection, False
        return await self.open(), True

    async def open(self) -> Connection:
        """A new connection. Raises OSError."""
        address = self.address
        context = (self.tls or ssl.create_default_context()) if address.is_tls else None
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(self.clock), address.host, address.port, ssl=context)
        self.num_opened += 1
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep it for the next request if it can serve one; else close it."""
        if connection.is_idle:
            self._idle.append(connection)
        else:
            connection.abort()

    def close(self) -> None:
        """Close all idle connections."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()


def encode_request(method: str, address: Address, path: str, headers: dict[str, str], body: bytes | None) -> bytes:
    """A whole request as bytes; `path` begins with a slash and is put below the base path."""
    lines = [f"{method} {address.base_path}{path} HTTP/1.1", f"host: {address.host_header}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")
