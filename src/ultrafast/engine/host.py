"""Inside the engine child: the threads around the engine loop, and the socket to the API process.

    main = engine thread   load, warm up, then EngineLoop.run; sends its own reports
    reader thread          socket -> loop.post; the end of the connection ends the process
    heartbeat thread       a Heartbeat every HEARTBEAT_INTERVAL_S, and the backlog of the outbox

Knows nothing of libllama: what runs is handed in by `child`.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from ultrafast.core.errors import ConfigError, UltrafastError
from ultrafast.engine.codec import FrameError, engine_side_reader
from ultrafast.engine.executor import Executor
from ultrafast.engine.grammars import CompileBounds
from ultrafast.engine.kvstore.disk import DiskStore
from ultrafast.engine.loop import EngineLoop, StepScheduler
from ultrafast.engine.messages import (
    HEARTBEAT_INTERVAL_S,
    Configure,
    Heartbeat,
    LoadFailed,
    Loading,
    Ready,
    Shutdown,
    ToEngine,
)
from ultrafast.engine.options import EngineFacts
from ultrafast.engine.outbox import Outbox
from ultrafast.engine.settle import settle
from ultrafast.engine.tether import tether_to_parent

_log = logging.getLogger("ultrafast.engine")

EXIT_OK = 0
EXIT_LOAD_FAILED = 3
EXIT_BROKEN_PEER = 70  # EX_SOFTWARE of sysexits.h
_RECEIVE_BYTES = 256 * 1024
_LAST_WORDS_TIMEOUT_S = 5.0

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Parts:
    """What a child runs, loaded and warm."""

    executor: Executor
    scheduler: StepScheduler
    facts: EngineFacts
    disk: DiskStore | None = None


Assemble = Callable[[Configure, Progress], Parts]


def run_process(fd: int, assemble: Assemble) -> NoReturn:
    """Be an engine child on descriptor `fd`. To be called once, on the main thread of a fresh process."""
    tether_to_parent()
    faulthandler.enable()
    with socket.socket(fileno=fd) as sock:
        code = serve(sock, assemble)
    _exit_now(code)  # daemon threads still run and C libraries have destructors: nothing is gained by a tidy end


def serve(sock: socket.socket, assemble: Assemble) -> int:
    """Load what the first message asks for, then serve until Shutdown.

    Args:
        sock: connected to the API process.
        assemble: loads and warms up (a replacement only loads); raises UltrafastError when this model cannot be served with
            these options.

    Returns:
        the exit code of the process. It may also end inside, when the API process is gone.
    """
    outbox = Outbox(sock)
    commands = CommandReader(sock)
    commands.start()
    configure = commands.wait_for_configure()
    heart = Heart(outbox)
    heart.start()
    try:
        parts = assemble(configure, ProgressMeter(outbox))
    except UltrafastError as error:
        outbox.send_last_words(
            LoadFailed(error.message, error.hint, error.code, error.param, isinstance(error, ConfigError)), _LAST_WORDS_TIMEOUT_S
        )
        return EXIT_LOAD_FAILED
    settle()
    bounds = CompileBounds(configure.options.tier_order, configure.options.tiers, parts.facts.max_num_running)
    loop = EngineLoop(parts.scheduler, parts.executor, time.monotonic, outbox.send_report, parts.disk, bounds)
    commands.deliver_to(loop.post)
    heart.watch(loop)
    outbox.send_last_words(Ready(parts.facts), _LAST_WORDS_TIMEOUT_S)
    loop.run()
    if parts.disk is not None:
        parts.disk.close()
    parts.executor.close()
    return EXIT_OK


class CommandReader(threading.Thread):
    """Posts what comes from the API process; when that ends, so does this process, at once and whatever it is doing."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(name="reader", daemon=True)
        self._socket = sock
        self._configure: queue.SimpleQueue[Configure] = queue.SimpleQueue()
        self._post: Callable[[ToEngine], None] = _obey_while_loading

    def wait_for_configure(self) -> Configure:
        """Return the first message."""
        return self._configure.get()

    def deliver_to(self, post: Callable[[ToEngine], None]) -> None:
        """Commands go there from now on."""
        self._post = post

    def run(self) -> None:
        reader = engine_side_reader()
        try:
            while data := self._socket.recv(_RECEIVE_BYTES):
                for command in reader.feed(data):
                    self._handle(command)
        except ConnectionResetError:
            pass
        except FrameError as error:
            _log.error("the API process sent what cannot be read: %s", error)
            _exit_now(EXIT_BROKEN_PEER)
        _exit_now(EXIT_OK)

    def _handle(self, command: ToEngine) -> None:
        if isinstance(command, Configure):
            self._configure.put(command)
        else:
            self._post(command)


class Heart(threading.Thread):
    """Says that the process is alive and whether it moves. Loading has a heartbeat too, but no steps."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._outbox = outbox
        self._loop: EngineLoop | None = None

    def watch(self, loop: EngineLoop) -> None:
        """Report this loop's progress from now on."""
        self._loop = loop

    def run(self) -> NoReturn:
        while True:
            self._outbox.send_if_free(self._beat())
            next_s = time.monotonic() + HEARTBEAT_INTERVAL_S
            while (left_s := next_s - time.monotonic()) > 0:
                self._outbox.wait(left_s)

    def _beat(self) -> Heartbeat:
        loop = self._loop
        if loop is None:
            return Heartbeat(step=0, last_step_s=time.monotonic(), has_work=False)
        return Heartbeat(loop.step, loop.last_step_s, loop.has_work)


class ProgressMeter:
    """Tells how far loading has come, in whole percents (libllama says it for every tensor). What finds no room is skipped."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._last: tuple[str, int] | None = None

    def __call__(self, stage: str, fraction: float) -> None:
        now = (stage, int(fraction * 100))
        if now != self._last:
            self._last = now
            self._outbox.send_if_free(Loading(stage, fraction))


def _obey_while_loading(command: ToEngine) -> None:
    """Nothing is accepted before Ready, but a child that is not wanted any more need not finish loading."""
    if isinstance(command, Shutdown):
        _exit_now(EXIT_OK)


def _exit_now(code: int) -> NoReturn:
    """End the process from any thread, even while another one is inside libllama."""
    sys.stderr.flush()
    os._exit(code)
