"""One engine child as the API process holds it: a process, and a socket on which messages come and go.

Lives on the event loop. A `ChildProcess` is used once: when it is lost, another one is spawned. Its messages go to the
callback it was spawned with, in order, up to the end of the connection and never after `end` has returned.
"""

from __future__ import annotations

import asyncio
import os
import socket
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import cast

from ultrafast.engine.codec import FrameError, client_side_reader, encode_frame
from ultrafast.engine.messages import FromEngine, ToEngine
from ultrafast.engine.prompt_write import prompt_writer

_STDERR = 2
_EOF_GRACE_S = 1.0
_BARRIERS = {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "200"}
"""How a compute thread of libllama waits at a barrier before it sleeps: turning, for some tens of microseconds.

Long enough for a machine of our own, where it costs nothing. Libgomp's own 300,000 turns are longer than a time slice: beside two
busy processes on two cores each of the thousand barriers of a step then waits for a slice to end, and a step of 6 ms took 3 s;
with 2,000 14 to 30 ms. "Active" is for a step inside of a suspended chunk. There are more threads than cores then, for which
libgomp allows 100 turns by default: nearly all barriers put a thread to sleep, and such a step took 16.5 ms; with the 1,000 that
it allows now, 7.8. LLVM's runtime would never sleep with that policy, were it not told its own default, in milliseconds.
"""
_MAX_ACTIVE_LEVELS = "2"
"""A step that is run while a side chunk is suspended begins inside of the chunk's threads, and has threads of its own."""


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child: ours, and how its compute threads behave unless that was said."""
    barriers = {} if "OMP_WAIT_POLICY" in environ else _BARRIERS
    return {**barriers, "OMP_MAX_ACTIVE_LEVELS": _MAX_ACTIVE_LEVELS, **environ}


class ChildConnection(asyncio.Protocol):
    """The socket: bytes to messages, and the news that it ended (`lost`)."""

    def __init__(self, on_message: Callable[[FromEngine], None]) -> None:
        self._on_message: Callable[[FromEngine], None] | None = on_message
        self._reader = client_side_reader()
        self._transport: asyncio.Transport | None = None
        self.lost = asyncio.Event()
        self.error: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._write = prompt_writer(self._transport)

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._reader.feed(data)
        except FrameError as error:
            self.error = str(error)
            self.abort()
            return
        for message in messages:
            if self._on_message is not None:
                self._on_message(message)

    def connection_lost(self, _: Exception | None) -> None:
        self.lost.set()

    @property
    def unsent_bytes(self) -> int:
        """What the child has not read yet, beyond the kernel's buffer."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, message: ToEngine) -> None:
        """Queue a message. After the connection is lost it goes nowhere, which the holder finds out by `lost`."""
        if self._transport is not None and not self._transport.is_closing():
            self._write(encode_frame(message))

    def abort(self) -> None:
        """Close at once; no message comes any more."""
        self._on_message = None
        if self._transport is not None:
            self._transport.abort()


class ChildProcess:
    """A spawned child. Whoever spawned it must await `end`."""

    def __init__(self, process: Process, connection: ChildConnection) -> None:
        self._process = process
        self.connection = connection

    @classmethod
    async def spawn(cls, command: Sequence[str], on_message: Callable[[FromEngine], None]) -> ChildProcess:
        """Start `command --fd N` with one end of a socket pair as descriptor N. Its stdout goes to our stderr.

        Raises:
            OSError: it cannot be started.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                fd = theirs.fileno()
                process = await asyncio.create_subprocess_exec(
                    *command,
                    "--fd",
                    str(fd),
                    pass_fds=(fd,),
                    stdin=DEVNULL,
                    stdout=_STDERR,
                    env=child_environment(os.environ),
                )
            child = cls(process, ChildConnection(on_message))
            ours.setblocking(False)
            await asyncio.get_running_loop().create_unix_connection(lambda: child.connection, sock=ours)
        except BaseException:
            ours.close()  # a child that did start sees the end of the connection and exits
            raise
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL, which a stopped process obeys too. Does nothing when it has exited."""
        if self._process.returncode is None:
            self._process.kill()

    async def end(self, grace_s: float) -> int:
        """Wait up to `grace_s` for the exit, kill it after that, and free everything.

        Returns:
            the exit code; -N when signal N ended it.
        """
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._process.wait()
        finally:
            code = await self._reap()
        return code

    async def _reap(self) -> int:
        self.kill()
        code = await self._process.wait()
        try:
            async with asyncio.timeout(_EOF_GRACE_S):  # what it still sent counts
                await self.connection.lost.wait()
        except TimeoutError:
            self.connection.abort()
            await self.connection.lost.wait()
        return code
