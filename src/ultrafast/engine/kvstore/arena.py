"""Host memory for runs. It holds what it is told to hold: `kv.levels` has charged every byte before."""

from __future__ import annotations


class HostArena:
    """Bytes by run id. The engine thread's.

    Attributes:
        used_bytes: of all runs together.
    """

    def __init__(self) -> None:
        self._runs: dict[int, memoryview] = {}
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, run_id: int) -> memoryview | None:
        return self._runs.get(run_id)

    def put(self, run_id: int, data: memoryview) -> None:
        assert run_id not in self._runs, f"run {run_id} is in host memory"
        self._runs[run_id] = data
        self.used_bytes += len(data)

    def drop(self, run_id: int) -> None:
        """Free a run; one that never arrived is ignored."""
        data = self._runs.pop(run_id, None)
        if data is not None:
            self.used_bytes -= len(data)
