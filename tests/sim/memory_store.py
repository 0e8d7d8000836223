"""A run store in memory on simulated time: as slow as told, and as broken."""

from __future__ import annotations

from collections.abc import Callable

from ultrafast.core.clock import ManualClock
from ultrafast.core.step import DeleteRun, KvMoved, ReadRun, WriteRun
from ultrafast.engine.kvstore.store import Job


class MemoryStore:
    """Keeps runs in a dict, one job after another at `bytes_per_s`.

    Attributes:
        is_full: writes fail as on a full disk. is_damaged: reads fail as on damaged files.
    """

    def __init__(self, clock: ManualClock, *, bytes_per_s: float = 1e6) -> None:
        self.files: dict[bytes, bytes] = {}
        self.bytes_per_s = bytes_per_s
        self.is_full = False
        self.is_damaged = False
        self.num_reads = 0
        self.clock = clock
        self._free_s = 0.0
        self._done: list[tuple[float, KvMoved, memoryview | None]] = []
        self._wake: Callable[[], None] = lambda: None

    def submit(self, job: Job) -> None:
        if isinstance(job, DeleteRun):
            self.files.pop(job.digest, None)
        elif isinstance(job, ReadRun):
            self.num_reads += 1
            data = self.files.get(job.digest)
            if data is None or self.is_damaged:
                self._finish(job.run_id, "read", None, 0)
            else:
                self._finish(job.run_id, "read", memoryview(data), len(data))
        else:
            self._write(*job)

    def _write(self, job: WriteRun, data: memoryview) -> None:
        if self.is_full:
            self._done.append((self.clock(), KvMoved(job.run_id, "write", is_ok=False, is_broken=True), None))
            return
        self.files[job.digest] = bytes(data)
        self._finish(job.run_id, "write", None, len(data))

    def _finish(self, run_id: int, way: str, data: memoryview | None, num_bytes: int) -> None:
        duration_s = num_bytes / self.bytes_per_s
        self._free_s = max(self._free_s, self.clock()) + duration_s
        self._done.append((self._free_s, KvMoved(run_id, way, num_bytes > 0, num_bytes, duration_s), data))
        self._wake()

    def poll(self) -> list[tuple[KvMoved, memoryview | None]]:
        done = [item for item in self._done if item[0] <= self.clock()]
        self._done = [item for item in self._done if item[0] > self.clock()]
        return [(moved, data) for _, moved, data in done]

    def on_done(self, wake: Callable[[], None]) -> None:
        self._wake = wake
