"""The seam between the engine thread and whatever keeps runs beyond this process.

Implementations: `engine.kvstore.disk.DiskStore`, and one in memory for tests and simulation; both pass the suite in
`tests/contract`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ultrafast.core.step import DeleteRun, KvMoved, ReadRun, WriteRun

Job = tuple[WriteRun, memoryview] | ReadRun | DeleteRun


class RunStore(Protocol):
    """Keeps runs by digest. The engine thread submits and polls; neither ever waits."""

    def submit(self, job: Job) -> None:
        """Have something done. Each write and each read is answered once by `poll`, whatever happens.

        A deletion is answered only when it failed and the level cannot be used any more.
        """
        ...

    def poll(self) -> list[tuple[KvMoved, memoryview | None]]:
        """Return what was done since the last call. A read that succeeded brings exactly the bytes that were written."""
        ...

    def on_done(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from any thread, whenever `poll` has something new."""
        ...
