"""One level outside the device: which runs are on it, what they cost, and which goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from ultrafast.kv.budget import ByteBudget
from ultrafast.kv.run import Run
from ultrafast.kv.value import value_of

_MAX_CANDIDATES = 32
"""Of the runs that may go, so many least recently used ones are compared by value: O(1) however many there are."""

RUN_OVERHEAD_BYTES = 4096
"""Upper bound of what a run's state holds beside its tokens' KV: counts, and types and sizes per layer."""
FILE_OVERHEAD_BYTES = 128
FILE_TOKEN_BYTES = 4
"""What a file holds beside the state: a header of less than FILE_OVERHEAD_BYTES, and the tokens themselves."""


@dataclass(frozen=True, slots=True)
class LevelLimits:
    """What the levels may use; facts of the engine and settings.

    Attributes:
        host_bytes, disk_bytes: budgets; 0 = the level is off. Disk needs host: bytes pass through it.
        ttl_s: a run that was not used for so long is dropped.
        bytes_per_token, fixed_bytes: size of a sequence's state.
        model_key: identifies everything that KV depends on (model, build, types, flash attention).
        can_trim: False = a sequence is moved as a whole or not at all.
    """

    host_bytes: int
    disk_bytes: int = 0
    ttl_s: float = 86_400.0
    bytes_per_token: int = 1
    fixed_bytes: int = 0
    model_key: bytes = b""
    can_trim: bool = True

    def estimated_bytes(self, num_tokens: int) -> int:
        """Upper bound of what so many tokens of a sequence take outside the device."""
        return self.fixed_bytes + num_tokens * self.bytes_per_token + RUN_OVERHEAD_BYTES


class Level:
    """Runs on one level, least recently used first; their bytes are charged from before they arrive until they are gone.

    Args:
        has_files: each run is a file of its own, which is charged as a whole.

    Attributes:
        num_tokens: of the runs that have arrived: what can be used, and on disk outlives the process.
    """

    def __init__(self, capacity_bytes: int, *, has_files: bool = False) -> None:
        self.budget = ByteBudget(capacity_bytes)
        self._has_files = has_files
        self._runs: OrderedDict[int, Run] = OrderedDict()
        self._arriving: set[int] = set()
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, run: Run) -> bool:
        return run.run_id in self._runs

    def bytes_of(self, run: Run) -> int:
        """What this run takes here."""
        return run.num_bytes + self._beside(run)

    def _beside(self, run: Run) -> int:
        return FILE_OVERHEAD_BYTES + FILE_TOKEN_BYTES * len(run.tokens) if self._has_files else 0

    def expect(self, run: Run) -> None:
        """Charge a run; its bytes may come now."""
        assert run not in self, "a run is on a level once"
        self._runs[run.run_id] = run
        self._arriving.add(run.run_id)
        self.budget.charge(self.bytes_of(run))

    def arrived(self, run: Run) -> None:
        """All bytes of a run that was expected are here."""
        self._arriving.remove(run.run_id)
        self.num_tokens += len(run.tokens)

    def remove(self, run: Run) -> None:
        """Refund a run; its bytes are gone, or will not come."""
        del self._runs[run.run_id]
        self.budget.refund(self.bytes_of(run))
        if run.run_id in self._arriving:
            self._arriving.remove(run.run_id)
        else:
            self.num_tokens -= len(run.tokens)

    def resize(self, run: Run, num_bytes: int) -> None:
        """Correct the charge of a run that is here; the caller sets `run.num_bytes` after it has done so on all levels."""
        self.budget.refund(self.bytes_of(run))
        self.budget.charge(num_bytes + self._beside(run))

    def touch(self, run: Run) -> None:
        self._runs.move_to_end(run.run_id)

    def oldest(self, may_go: Callable[[Run], bool]) -> Run | None:
        """The least recently used run that may go."""
        return next((run for run in self._runs.values() if may_go(run)), None)

    def victim(self, may_go: Callable[[Run], bool], now: float) -> Run | None:
        """The run of least value among the least recently used ones that may go; None when none may."""
        candidates: list[Run] = []
        for run in self._runs.values():
            if may_go(run):
                candidates.append(run)
                if len(candidates) == _MAX_CANDIDATES:
                    break
        return min(candidates, key=lambda run: (value_of(run, now), run.run_id), default=None)

    def runs(self) -> list[Run]:
        return list(self._runs.values())
