"""A server of our own to measure: started with its settings, waited for, stopped. Nothing of it is left afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from ultrafast.core.errors import UltrafastError
from ultrafast.engine.tether import die_with_parent

START_TIMEOUT_S = 600.0
_STOP_TIMEOUT_S = 30.0
_NUM_LOG_CHARS = 1500


class ServerStartError(UltrafastError):
    """A server of our own did not become ready."""

    code = "server_start_failed"


class ReadyLine(msgspec.Struct):
    """What `ultrafast serve --json` prints when it is ready."""

    url: str
    model: str
    flash_attention: bool
    kv_capacity_tokens: int
    num_threads: int
    libllama: str


class OwnServer:
    """A running server. Made by `start_server`; belongs to one event loop.

    Attributes:
        ready: what it said of itself.
    """

    def __init__(self, process: asyncio.subprocess.Process, log: IO[bytes], ready: ReadyLine) -> None:
        self._process = process
        self._log = log
        self.ready = ready

    async def stop(self) -> None:
        """End it; returns when it has ended. May be called twice."""
        await _end(self._process)
        self._log.close()


async def start_server(config_file: Path | None, settings: Mapping[str, Any], env: Mapping[str, str]) -> OwnServer:
    """Start `ultrafast serve` on a free port of this machine.

    Args:
        config_file: its settings file, if there is one.
        settings: by dotted name; win over the file and the environment.
        env: the whole environment of the server.

    Raises:
        ServerStartError: with the end of its log.
    """
    command = [sys.executable, "-m", "ultrafast.cli.main", "serve", "--json", "--host", "127.0.0.1", "--port", "0"]
    command += ["--config", str(config_file)] if config_file is not None else []
    for name, value in settings.items():
        command += ["--set", f"{name}={setting_text(value)}"]
    log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command, stdin=nothing, stdout=pipe, stderr=log, env=dict(env), preexec_fn=_tied_to(os.getpid())
    )
    try:
        return OwnServer(process, log, await _wait_ready(process))
    except BaseException as error:
        await _end(process)
        text = _end_of(log)
        log.close()
        if isinstance(error, (TimeoutError, msgspec.DecodeError)):
            given = ", ".join(f"{name} = {setting_text(value)}" for name, value in settings.items())
            raise ServerStartError(
                f"A server did not start with {given}.\n{text}",
                hint="If memory is short: --restart keeps only one server at a time.",
            ) from error
        raise


def _tied_to(parent: int) -> Callable[[], None]:
    """What a child does first: it must not outlive its parent, even one that died meanwhile."""

    def tie() -> None:
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)

    return tie


def setting_text(value: Any) -> str:
    """A value as `--set` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


async def _wait_ready(process: asyncio.subprocess.Process) -> ReadyLine:
    assert process.stdout is not None, "it was asked for"
    async with asyncio.timeout(START_TIMEOUT_S):
        return msgspec.json.decode(await process.stdout.readline(), type=ReadyLine)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _end_of(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode("utf-8", "replace")[-_NUM_LOG_CHARS:].strip()
