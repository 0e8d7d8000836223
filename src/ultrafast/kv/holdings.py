"""What is held outside the device: which runs are on which level, who may not be moved, and who is evicted for whom.

    host memory  [A][B][C]      a run is on one level or on both; bytes are charged from before they come until they are gone
    disk         [A][B]   [X]   *pinned*: in transfer or needed by a request; *kept*: a pinned prompt; neither is evicted

Ends of chains go before their starts: a run whose predecessor is gone could not be found any more. What leaves its last level is
forgotten, and so is what could only be found through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ultrafast.core.step import DeleteRun, DropRun, KvOp
from ultrafast.kv.digest import root_digest
from ultrafast.kv.index import Part, RunIndex
from ultrafast.kv.level import Level, LevelLimits
from ultrafast.kv.run import RUN_TOKENS, Place, Run

EXPIRY_LOOKS = 100
"""What is too old is looked for so many times during a TTL."""


class Holdings:
    """The accounts of host memory and disk. Transfers into them are ordered by `kv.levels`.

    Args:
        emit: takes the operations that free bytes, in order, together with the ledger's.

    Attributes:
        host, disk: the levels. index: all runs that are on any of them.
        num_evicted_host, num_evicted_disk: runs that left a level for want of room.
    """

    def __init__(self, limits: LevelLimits, emit: Callable[[KvOp], None]) -> None:
        self.index = RunIndex(RUN_TOKENS if limits.can_trim else None)
        self.host = Level(limits.host_bytes)
        self.disk = Level(limits.disk_bytes, has_files=True)
        self.num_evicted_host = 0
        self.num_evicted_disk = 0
        self._limits = limits
        self._emit = emit
        self._num_runs = 0
        self._next_expiry_s = 0.0

    def new_run(
        self, parent: bytes, digest: bytes, start: int, tokens: tuple[int, ...], num_bytes: int, last_used_s: float
    ) -> Run:
        """Enter a run that the caller puts on a level at once."""
        self._num_runs += 1
        run = Run(self._num_runs, parent, digest, start, tokens, num_bytes)
        run.last_used_s = last_used_s
        self.index.add(run)
        return run

    def is_held(self, run: Run) -> bool:
        """Whether it is the run of that id, and not forgotten."""
        return self.index.get(run.run_id) is run

    # -- pins ---------------------------------------------------------------------------------------------------------------

    def pin(self, parts: Iterable[Part]) -> None:
        """Keep these runs where they are until `unpin`."""
        for part in parts:
            part.run.num_pins += 1

    def unpin(self, parts: Iterable[Part]) -> None:
        """Undo `pin`. A private run that nobody pins any more is dropped."""
        for part in parts:
            run = part.run
            assert run.num_pins > 0, f"run {run.run_id} is not pinned"
            run.num_pins -= 1
            if run.is_private and not run.num_pins and self.is_held(run):
                self.drop(run)

    def used(self, parts: list[Part], now: float) -> None:
        """Note that a request reuses these runs."""
        for part in reversed(parts):
            run = part.run
            run.num_hits += 1
            run.last_used_s = now
            for level in self._levels_of(run):
                level.touch(run)

    def keep(self, tokens: list[int], namespace: str) -> None:
        """Never evict what there is of these tokens (a pinned prompt)."""
        for part in self.index.match(root_digest(self._limits.model_key, namespace), tokens, len(tokens)):
            part.run.is_kept = True

    def resize(self, run: Run, num_bytes: int) -> None:
        """Correct what a run is charged with, now that it was measured."""
        for level in self._levels_of(run):
            level.resize(run, num_bytes)
        run.num_bytes = num_bytes

    def _levels_of(self, run: Run) -> list[Level]:
        return [level for level in (self.host, self.disk) if run in level]

    # -- eviction -----------------------------------------------------------------------------------------------------------

    def make_host_room(self, num_bytes: int, now: float) -> bool:
        """Evict from host memory until so many bytes are free. False: it cannot be; what was evicted until then is gone."""
        while self.host.budget.num_free < num_bytes:
            victim = self._victim(self.host, num_bytes, self._may_leave_host, now)
            if victim is None:
                return False
            self.num_evicted_host += 1
            self.leave_host(victim)
        return True

    def make_disk_room(self, num_bytes: int, now: float) -> bool:
        """The same for the disk."""
        while self.disk.budget.num_free < num_bytes:
            victim = self._victim(self.disk, num_bytes, self._may_leave_disk, now)
            if victim is None:
                return False
            self.num_evicted_disk += 1
            self.leave_disk(victim)
        return True

    def make_room_after(self, parent: bytes, num_bytes: int, now: float) -> bool:
        """Make room in host memory without evicting the run that the new one follows."""
        predecessor = self.index.with_digest(parent)
        if predecessor is not None:
            predecessor.num_pins += 1
        is_made = self.make_host_room(num_bytes, now)
        if predecessor is not None:
            predecessor.num_pins -= 1
        return is_made

    def _victim(self, level: Level, num_bytes: int, may_go: Callable[[Run], bool], now: float) -> Run | None:
        """Who goes; nobody for something that is larger than the level."""
        return level.victim(may_go, now) if num_bytes <= level.budget.capacity_bytes else None

    def _may_leave_host(self, run: Run) -> bool:
        if run.host is not Place.PRESENT or run.num_pins or run.is_kept:
            return False
        children = self.index.children(run)
        return not children if run.disk is Place.ABSENT else all(child.host is Place.ABSENT for child in children)

    def _may_leave_disk(self, run: Run) -> bool:
        if run.disk is not Place.PRESENT or run.num_pins or run.is_kept:
            return False
        children = self.index.children(run)
        return not children if run.host is Place.ABSENT else all(child.disk is Place.ABSENT for child in children)

    def expire(self, now: float) -> None:
        """Drop what was not used for `ttl_s`; called at every step, it looks from time to time."""
        if now < self._next_expiry_s:
            return
        self._next_expiry_s = now + self._limits.ttl_s / EXPIRY_LOOKS

        def is_due(run: Run) -> bool:
            return now - run.last_used_s > self._limits.ttl_s and not run.is_kept and not run.num_pins

        for level in (self.host, self.disk):
            while (run := level.oldest(lambda run: is_due(run) and not self.index.children(run))) is not None:
                self.drop(run)

    def clear(self, *, with_disk: bool) -> None:
        """Drop everything that nobody needs at this moment, pinned prompts included."""
        for run in reversed(self.index.runs()):
            run.is_kept = False
            if run.num_pins == 0 and (with_disk or run.disk is Place.ABSENT):
                self.drop(run)

    # -- leaving ------------------------------------------------------------------------------------------------------------

    def leave_host(self, run: Run, *, is_empty: bool = False) -> None:
        """It is in host memory no longer. `is_empty`: its bytes never came, so there is nothing to free."""
        run.host = Place.ABSENT
        self.host.remove(run)
        if not is_empty:
            self._emit(DropRun(run.run_id))
        self._forget_if_gone(run)

    def leave_disk(self, run: Run) -> None:
        """It is on disk no longer; its file is deleted."""
        run.disk = Place.ABSENT
        self.disk.remove(run)
        self._emit(DeleteRun(run.run_id, run.digest))
        self._forget_if_gone(run)

    def lose_disk(self) -> None:
        """Nothing is on disk any more, and nothing can be deleted there."""
        lost = self.disk.runs()
        for run in lost:
            run.disk = Place.ABSENT
            self.disk.remove(run)
        for run in lost:  # only now: forgetting one forgets what followed it
            self._forget_if_gone(run)

    def drop(self, run: Run) -> None:
        """Off all levels."""
        assert run.num_pins == 0, "a pinned run stays"
        if run.disk is not Place.ABSENT:
            self.leave_disk(run)
        if run.host is not Place.ABSENT:
            self.leave_host(run)

    def _forget_if_gone(self, run: Run) -> None:
        """Gone from its last level: forget it, and what can only be found through it."""
        if run.host is not Place.ABSENT or run.disk is not Place.ABSENT or not self.is_held(run):
            return
        self.index.remove(run)
        for child in list(self.index.children(run)):
            if child.num_pins == 0:
                self.drop(child)
