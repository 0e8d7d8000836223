"""Servers, one at a time, in the order A B B A: drift of the machine hits all sides alike.

All stay loaded. Before anything is measured, a server without requests must be shown to use no CPU; one that does is stopped
with SIGSTOP while another one is measured.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.processes import RunningServer, paused

IDLE_CPU_LIMIT = 0.02  # cores
_SETTLE_S = 1.0
_WATCH_S = 3.0
_REST_S = 0.2
_IDLE_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Field:
    """Servers that are all loaded and measured one at a time; `idle_cores` is what each uses without requests."""

    servers: tuple[RunningServer, ...]
    idle_cores: tuple[float, ...]

    def there_and_back(self) -> tuple[RunningServer, ...]:
        """One group: A B B A, or A B C C B A."""
        return (*self.servers, *reversed(self.servers))

    @contextlib.contextmanager
    def only(self, server: RunningServer) -> Iterator[None]:
        """The others use no CPU inside."""
        with paused([other for other in self._busy_when_idle() if other is not server]):
            time.sleep(_REST_S)
            yield

    def note(self) -> str:
        """For the report."""
        parts = [
            f"{server.name} keeps {cores:.3f} cores busy" for server, cores in zip(self.servers, self.idle_cores, strict=True)
        ]
        stopped = [server.name for server in self._busy_when_idle()]
        return f"idle, {', '.join(parts)}" + (
            f"; {' and '.join(stopped)} stopped (SIGSTOP) while others are measured" if stopped else ""
        )

    def _busy_when_idle(self) -> list[RunningServer]:
        return [server for server, cores in zip(self.servers, self.idle_cores, strict=True) if cores > IDLE_CPU_LIMIT]


def settle_all(*servers: RunningServer) -> Field:
    """Measure what each uses while it has nothing to do."""
    return Field(servers, _idle_cores(servers))


def wait_until_idle(server: RunningServer) -> None:
    """Return when it has nothing to do any more: a server may go on with what its clients have given up.

    Raises:
        TimeoutError: it is still busy after `_IDLE_TIMEOUT_S`.
    """
    deadline_s = time.monotonic() + _IDLE_TIMEOUT_S
    while time.monotonic() < deadline_s:
        before_s = server.cpu_s()
        time.sleep(_SETTLE_S)
        if server.cpu_s() - before_s <= IDLE_CPU_LIMIT * _SETTLE_S:
            return
    raise TimeoutError(f"{server.name} computes for more than {_IDLE_TIMEOUT_S:.0f} s after its last client has left")


def _idle_cores(servers: Sequence[RunningServer]) -> tuple[float, ...]:
    time.sleep(_SETTLE_S)
    before_s, begin_s = [server.cpu_s() for server in servers], time.monotonic()
    time.sleep(_WATCH_S)
    duration_s = time.monotonic() - begin_s
    return tuple((server.cpu_s() - cpu_s) / duration_s for server, cpu_s in zip(servers, before_s, strict=True))


def group_ratio(ours: Sequence[float], peer: Sequence[float]) -> float:
    """Ratio of the means of one A B B A group, ours over the peer's."""
    return (sum(ours) / len(ours)) / (sum(peer) / len(peer))
