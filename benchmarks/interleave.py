"""Two servers, one at a time, in the order A B B A: drift of the machine hits both sides alike.

Both stay loaded. Before anything is measured, a server without requests must be shown to use no CPU; one that does is stopped
with SIGSTOP while the other one is measured.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.processes import RunningServer, idle_cpu_share, paused

IDLE_CPU_LIMIT = 0.02  # cores
_SETTLE_S = 1.0
_WATCH_S = 3.0
_REST_S = 0.2


@dataclass(frozen=True, slots=True)
class Pair:
    """Ours and a peer, and which of them must be paused while idle."""

    ours: RunningServer
    peer: RunningServer
    idle_cores: tuple[float, float]

    def abba(self) -> tuple[RunningServer, ...]:
        """One group."""
        return (self.ours, self.peer, self.peer, self.ours)

    @contextlib.contextmanager
    def only(self, server: RunningServer) -> Iterator[None]:
        """The other one uses no CPU inside."""
        other, cores = (self.peer, self.idle_cores[1]) if server is self.ours else (self.ours, self.idle_cores[0])
        with paused([other] if cores > IDLE_CPU_LIMIT else []):
            time.sleep(_REST_S)
            yield

    def note(self) -> str:
        """For the report."""
        ours, peer = self.idle_cores
        stopped = [name for name, cores in (("ours", ours), ("the peer", peer)) if cores > IDLE_CPU_LIMIT]
        text = f"idle, ours keeps {ours:.3f} cores busy, the peer {peer:.3f}"
        return text + (f"; {' and '.join(stopped)} stopped (SIGSTOP) while the other was measured" if stopped else "")


def settle(ours: RunningServer, peer: RunningServer) -> Pair:
    """Measure what both use while they have nothing to do."""
    time.sleep(_SETTLE_S)
    return Pair(ours, peer, (idle_cpu_share(ours, _WATCH_S), idle_cpu_share(peer, _WATCH_S)))


def group_ratio(ours: Sequence[float], peer: Sequence[float]) -> float:
    """Ratio of the means of one A B B A group, ours over the peer's."""
    return (sum(ours) / len(ours)) / (sum(peer) / len(peer))
