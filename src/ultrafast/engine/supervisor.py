"""Keeps one engine child running: spawns it, waits until it is ready, watches it, replaces it when it is lost or hangs.

Knows nothing of requests: a `ChildUser` is told what happens. Runs as one task on the event loop, owned by the client.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Protocol

from ultrafast.core.clock import Clock
from ultrafast.core.errors import ConfigError, EngineFailedError, ModelFileError, UltrafastError
from ultrafast.engine.health import EngineState, RecoveryPolicy
from ultrafast.engine.messages import (
    Configure,
    FromEngine,
    Heartbeat,
    LoadFailed,
    Loading,
    Ready,
    Shutdown,
    StepReport,
    ToEngine,
)
from ultrafast.engine.options import EngineFacts, EngineOptions
from ultrafast.engine.process import ChildProcess
from ultrafast.engine.pulse import Pulse


class ChildUser(Protocol):
    """Whom the supervisor tells. All calls come on the event loop and must return soon and not raise."""

    @property
    def num_sent(self) -> int:
        """Requests that the child of now holds."""
        ...

    def on_loading(self, progress: Loading) -> None: ...

    def on_ready(self, facts: EngineFacts) -> None:
        """A child accepts requests."""
        ...

    def on_report(self, report: StepReport) -> None: ...

    def on_lost(self, reason: str) -> None:
        """A child that was ready or loading is gone for good, and so is all it held; another one follows."""
        ...

    def on_failed(self, error: UltrafastError) -> None:
        """No child will follow. Last call."""
        ...


class Supervisor:
    """One engine child after the other."""

    def __init__(
        self, options: EngineOptions, user: ChildUser, *, command: Sequence[str], policy: RecoveryPolicy, clock: Clock
    ) -> None:
        self._options = options
        self._user = user
        self._command = command
        self._policy = policy
        self._clock = clock
        self._child: ChildProcess | None = None
        self._is_stopping = False
        self._load_error: UltrafastError | None = None
        self._was_ready = False
        self._num_failed_starts = 0
        self._num_idle_losses = 0
        self.pulse = Pulse(policy, clock)
        self.state = EngineState.STARTING
        self.num_restarts = 0

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    @property
    def unsent_bytes(self) -> int:
        return self._child.connection.unsent_bytes if self._child is not None else 0

    def send(self, message: ToEngine) -> None:
        """Send to the child of now, which must be ready. Lost with the child when it dies; `on_lost` says so."""
        assert self._child is not None, "no child to send to"
        self._child.connection.send(message)

    def stop(self) -> None:
        """Let `run` end: the child is asked to exit, then made to."""
        self._is_stopping = True
        if self._child is not None:
            self._child.connection.send(Shutdown())

    async def run(self) -> None:
        """Until `stop`, or until no child can be brought to work."""
        while True:
            reason = await self._run_child()
            if self._is_stopping:
                self.state = EngineState.STOPPED
                return
            if (error := self._give_up(reason)) is not None:
                self.state = EngineState.FAILED
                self._user.on_failed(error)
                return
            self._user.on_lost(reason)
            await asyncio.sleep(self._next_backoff_s())

    async def _run_child(self) -> str:
        """One life of a child; returns why it ended."""
        self._load_error = None
        self._was_ready = False
        self.pulse = Pulse(self._policy, self._clock)
        try:
            child = await ChildProcess.spawn(self._command, self._on_message)
        except OSError as error:
            return f"the engine process could not be started: {error}"
        self._child = child
        hang: str | None = None
        try:
            child.connection.send(Configure(self._options, is_replacement=self.state is EngineState.RESTARTING))
            if self._is_stopping:
                child.connection.send(Shutdown())
            hang = await self._watch(child)
        finally:
            if self.state is EngineState.READY:
                self.state = EngineState.RESTARTING
                self._was_ready = True
            code = await child.end(self._policy.exit_grace_s)
            self._child = None
        return hang or child.connection.error or _describe_exit(code)

    async def _watch(self, child: ChildProcess) -> str | None:
        """Return when the child is lost; kill it when it hangs, and say so."""
        hang: str | None = None
        while not child.connection.lost.is_set():
            try:
                async with asyncio.timeout(self._policy.watch_interval_s):
                    await child.connection.lost.wait()
            except TimeoutError:
                pass
            if self._is_stopping:
                return None  # `end` gives it time to exit
            if hang is None and (hang := self.pulse.describe_hang(self._user.num_sent)) is not None:
                child.kill()
        return hang

    def _on_message(self, message: FromEngine) -> None:
        if isinstance(message, StepReport):
            self._user.on_report(message)  # first: clients wait for what is in it
            if message.stats is not None:
                self._num_idle_losses = 0
                self.pulse.step(message.stats.at_s)
        elif isinstance(message, Heartbeat):
            self.pulse.beat(message)
        elif isinstance(message, Ready):
            self._num_failed_starts = 0
            self.state = EngineState.READY
            self._user.on_ready(message.facts)
        elif isinstance(message, Loading):
            self._user.on_loading(message)
        else:
            assert isinstance(message, LoadFailed)
            kind = ConfigError if message.is_setting else ModelFileError
            self._load_error = kind(message.message, code=message.code, param=message.param, hint=message.hint)

    def _give_up(self, reason: str) -> UltrafastError | None:
        """Judge a lost child: is there any use in starting another one?"""
        is_first = self.state is EngineState.STARTING
        if not is_first:
            self.num_restarts += 1
        if self._was_ready:
            return None
        self._num_failed_starts += 1
        is_last = self._num_failed_starts >= self._policy.max_failed_starts
        if self._load_error is not None and (is_first or is_last):
            return self._load_error
        if not is_last:
            return None
        return EngineFailedError(
            f"the engine did not become ready in {self._num_failed_starts} starts; the last one: {reason}",
            hint="the engine's messages on stderr say more",
        )

    def _next_backoff_s(self) -> float:
        """The first replacement comes at once; then 1, 2, 4 ... times `backoff_s` until some child finishes a step."""
        self._num_idle_losses += 1
        if self._num_idle_losses == 1:
            return 0.0
        return min(self._policy.backoff_s * 2.0 ** (self._num_idle_losses - 2), self._policy.max_backoff_s)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"the engine process exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the engine process was ended by {name}"
