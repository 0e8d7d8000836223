r"""Runs the application under uvicorn: the socket, the signals, the drain.

listening --SIGTERM or SIGINT--> draining (ready = 503, new calls 503) --all ended, or time is up--> closed, exit code 0
                                    \--second signal--> the rest is cut off at once
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import sys
from collections.abc import Callable, Iterator

import uvicorn
import uvloop

from ultrafast.api.edge import Edge
from ultrafast.api.protocol import EdgeProtocol
from ultrafast.core.errors import ConfigError
from ultrafast.observe.loop_lag import watched_loop

# The kernel would otherwise take megabytes for a client that reads nothing before anybody notices.
SEND_BUFFER_BYTES = 256 * 1024
CLOSE_TIMEOUT_S = 5
"""How long open connections may take to close once every call has ended."""
IDLE_CONNECTION_S = 75
"""Idle connections are kept so long: above the 60 s after which common proxies close theirs, so that they never race us."""

_STOP_SIGNALS: tuple[int, ...] = (signal.SIGTERM, signal.SIGINT)
OnListening = Callable[[str, int], None]


def run(app: Edge, host: str, port: int, *, on_listening: OnListening | None = None) -> int:
    """Serve until a signal; return the exit code. Prints nothing.

    Args:
        host: name or address; the first address of a name is taken.
        app: from `build_app`; its lifespan is entered before the socket listens.
        port: 0 takes a free one.
        on_listening: called once with the address and the real port, when requests are taken.

    Raises:
        ConfigError: the address cannot be used.
        UltrafastError: what the lifespan raises at start.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(app, host, port, on_listening=on_listening))


async def serve(app: Edge, host: str, port: int, *, on_listening: OnListening | None = None) -> int:
    """The same inside a running event loop. Outside the main thread there are no signals; cancel it instead."""
    sock = _bind(host, port, app.context.settings.write_stall_timeout_s)
    server = _Server(app, sock, on_listening)
    try:
        lag = app.context.recorder.metrics.event_loop_lag
        with _signals(server.on_signal), watched_loop(lag.observe):
            async with app.lifespan():
                await server.serve(sockets=[sock])
    except asyncio.CancelledError:
        # A signal during the start cancels it; every other cancellation is the caller's.
        if not server.is_stopping or server.started:
            raise
    finally:
        server.abandon()
        sock.close()
    return 0


@contextlib.contextmanager
def _signals(on_signal: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    added: list[int] = []
    # Outside the main thread the loop refuses; then the owner of the thread decides.
    with contextlib.suppress(ValueError, RuntimeError):
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, on_signal)
            added.append(number)
    try:
        yield
    finally:
        for number in added:
            loop.remove_signal_handler(number)


class _Server(uvicorn.Server):
    """uvicorn with a drain, and without its signal handling, which ends the process by the signal instead of with exit code 0.

    Attributes:
        is_stopping: a signal has come.
    """

    def __init__(self, app: Edge, sock: socket.socket, on_listening: OnListening | None) -> None:
        super().__init__(_config(app))
        self.is_stopping = False
        self._app = app
        self._sock = sock
        self._on_listening = on_listening
        self._stop = asyncio.Event()
        self._owner = asyncio.current_task()

    def on_signal(self) -> None:
        """First signal: drain, or give up a start. Second: cut everything off."""
        if self.is_stopping:
            self._app.context.lifecycle.cut()
            self.force_exit = True
            return
        self.is_stopping = True
        self._stop.set()
        if not self.started and self._owner is not None:
            self._owner.cancel()

    def abandon(self) -> None:
        """Let go of all that is still open; after an orderly end that is nothing."""
        for listener in getattr(self, "servers", []):
            listener.close()
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._on_listening is not None:
            address = self._sock.getsockname()
            self._on_listening(address[0], address[1])

    async def main_loop(self) -> None:
        # In place of uvicorn's, which wakes the process ten times a second.
        async with asyncio.TaskGroup() as group:
            ticker = group.create_task(self._tick())
            await self._stop.wait()
            await self._app.context.lifecycle.drain(self._app.context.settings.drain_timeout_s)
            self.should_exit = True
            ticker.cancel()

    async def _tick(self) -> None:
        """Keep the date of the response headers true."""
        while True:
            await self.on_tick(0)
            await asyncio.sleep(1)


def _config(app: Edge) -> uvicorn.Config:
    settings = app.context.settings
    recorder = app.context.recorder

    class Protocol(EdgeProtocol):
        header_timeout_s = settings.read_timeout_s

        @staticmethod
        def on_refused(status: int) -> None:
            recorder.on_response("unmatched", f"{status // 100}xx")

    return uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        # `serve` enters the lifespan itself, so that what it raises keeps its type.
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=IDLE_CONNECTION_S,
        timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
        backlog=1024,
    )


def _bind(host: str, port: int, write_stall_timeout_s: float) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(host, port, error) from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit both.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        if sys.platform == "linux":
            # Ends connections whose client is gone without a word, or never reads what is still buffered.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(write_stall_timeout_s * 1000))
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _cannot_listen(host, port, error) from error
    sock.setblocking(False)
    return sock


_HOST_HINT = "--host takes an address of this machine: 127.0.0.1 for this machine only, 0.0.0.0 for every interface"
_HINTS = {
    errno.EADDRINUSE: "another server holds the port; choose one with --port, or 0 for a free one",
    errno.EACCES: "ports below 1024 are reserved for privileged users; choose another one with --port",
    errno.EADDRNOTAVAIL: _HOST_HINT,
}


def _cannot_listen(host: str, port: int, error: OSError | UnicodeError) -> ConfigError:
    if isinstance(error, UnicodeError):
        reason, hint = "this is no host name", _HOST_HINT
    else:
        reason = error.strerror or str(error)
        hint = _HOST_HINT if isinstance(error, socket.gaierror) else _HINTS.get(error.errno or 0, "check --host and --port")
    param = "server.host" if hint is _HOST_HINT else "server.port"
    return ConfigError(f"cannot listen on {host}:{port}: {reason}", param=param, hint=hint)
