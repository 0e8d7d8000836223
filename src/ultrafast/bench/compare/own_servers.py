"""The servers of a comparison of two configurations: both up, one of them idle, or one at a time. None is left afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ultrafast.bench.compare.configurations import Configuration, check_alike, differing_settings
from ultrafast.bench.compare.interleave import order_of
from ultrafast.bench.own_server import OwnServer, ReadyLine, start_server

Start = Callable[[Path | None, Mapping[str, Any], Mapping[str, str]], Awaitable[OwnServer]]
OnStart = Callable[[str, Configuration], None]


class OwnServers:
    """Starts a server where a run needs one. Belongs to one event loop; call `stop` in a `finally`."""

    def __init__(
        self,
        a: Configuration,
        b: Configuration,
        env: Mapping[str, str],
        *,
        is_restarting: bool = False,
        on_start: OnStart | None = None,
        start: Start = start_server,
    ) -> None:
        """Nothing is started yet.

        Args:
            a: what A's server is started with.
            b: the same of B.
            env: the whole environment of the servers.
            is_restarting: only one server at a time, started for each run.
            on_start: called before a server is started, with its side ("a" or "b").
            start: what starts one; another one in tests.
        """
        self._sides = {"a": a, "b": b}
        self._env = env
        self._is_restarting = is_restarting
        self._on_start = on_start
        self._start = start
        self._servers: dict[str, OwnServer] = {}
        self._ready: dict[str, ReadyLine] = {}

    @asynccontextmanager
    async def serving(self, side: str) -> AsyncIterator[str]:
        """The address of a side's server ("a" or "b"), for one run. Before the first run both are started and looked at.

        Raises:
            ServerStartError: with the end of the server's log.
            ConditionsDifferError: the two differ in what no setting explains.
        """
        if not self._is_restarting:
            for each in order_of(0):
                await self._bring_up(each)
        server = await self._bring_up(side)
        try:
            yield server.ready.url
        finally:
            if self._is_restarting:
                await self._servers.pop(side).stop()

    async def stop(self) -> None:
        """End all that still run; returns when they have ended. May be called twice."""
        while self._servers:
            _, server = self._servers.popitem()
            await server.stop()

    async def _bring_up(self, side: str) -> OwnServer:
        if side not in self._servers:
            configuration = self._sides[side]
            if self._on_start is not None:
                self._on_start(side, configuration)
            self._servers[side] = await self._start(configuration.config_file, configuration.settings, self._env)
            self._ready[side] = self._servers[side].ready
            self._check()
        return self._servers[side]

    def _check(self) -> None:
        if len(self._ready) == len(self._sides):
            check_alike(self._ready["a"], self._ready["b"], differing_settings(self._sides["a"], self._sides["b"]))
