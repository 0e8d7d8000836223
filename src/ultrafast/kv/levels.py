"""KV outside the device: host memory and disk, as bookkeeping. The bytes are in `engine.kvstore`.

    device (the pool: kv.ledger) --save--> host memory --write--> disk
                                 <--load--             <--read---

Every arrow is an operation for the engine, written down here and answered later by `moved`. Bytes are charged before the
operation is handed out and refunded when it is undone, so no level ever holds more than its budget. A run in transfer, or needed
by a request, is pinned: it is not evicted. What comes of a transfer whose run is gone meanwhile is recognised by its id, which
is never used twice, and ignored.

Ends of chains go before their starts: a run whose predecessor is gone could not be found any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ultrafast.core.events import KvLevelsChanged
from ultrafast.core.step import DeleteRun, DropRun, KvMoved, KvOp, ReadRun, SaveRun, WriteRun
from ultrafast.kv.digest import next_digest, root_digest
from ultrafast.kv.gate import Bandwidths, Way, worth_fetching
from ultrafast.kv.index import Part, RunIndex
from ultrafast.kv.level import Level
from ultrafast.kv.run import RUN_TOKENS, Place, Run

RUN_OVERHEAD_BYTES = 4096
"""Upper bound of what a run's state holds beside its tokens' KV: counts, and types and sizes per layer."""
MAX_WRITES_IN_FLIGHT = 4
EXPIRY_LOOKS = 100
"""What is too old is looked for so many times during a TTL."""


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


@dataclass(frozen=True, slots=True)
class Missing:
    """Tokens [begin, end) of a sequence, after `parent`, which no level outside the device has."""

    parent: bytes
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run that was found on disk at the start. `age_s`: since it was last used."""

    parent: bytes
    digest: bytes
    start: int
    tokens: tuple[int, ...]
    num_bytes: int
    age_s: float = 0.0


class KvLevels:
    """Owns the accounts of host memory and disk. One thread owns it, the same that owns the ledger.

    Args:
        emit: takes the operations, in order, together with the ledger's.
    """

    def __init__(self, limits: LevelLimits, emit: Callable[[KvOp], None]) -> None:
        self.limits = limits
        self.bandwidths = Bandwidths()
        self.index = RunIndex(RUN_TOKENS if limits.can_trim else None)
        self.host = Level(limits.host_bytes)
        self.disk = Level(limits.disk_bytes)
        self.is_disk_on = limits.disk_bytes > 0
        self.version = 0
        self._emit = emit
        self._num_runs = 0
        self._next_expiry_s = 0.0
        self._to_write: deque[Run] = deque()
        self._writing: set[int] = set()
        self._moved = dict.fromkeys(Way, 0)
        self._num_evicted = {"host": 0, "disk": 0}

    # -- what is there ------------------------------------------------------------------------------------------------------

    def root(self, namespace: str) -> bytes:
        return root_digest(self.limits.model_key, namespace)

    def find(self, tokens: list[int], namespace: str, start: int, limit: int) -> list[Part]:
        """Find what host and disk have of `tokens[start:limit]`: contiguous from `start` on, empty when nothing is.

        Where sequences cannot be cut the only part begins at 0 and replaces what the device has.
        """
        if not len(self.index):
            return []
        parts = [part for part in self.index.match(self.root(namespace), tokens, limit) if part.end > start]
        if parts and parts[0].begin < start and self.limits.can_trim:
            parts[0] = Part(parts[0].run, start, parts[0].end)
        return parts

    def choose(self, parts: list[Part], token_s: float | None, now: float) -> list[Part]:
        """Those first parts that are worth fetching."""
        return worth_fetching(parts, self.bandwidths, token_s, now)

    def unsaved(self, tokens: list[int], namespace: str) -> list[Missing]:
        """What of a sequence is in no level outside the device, first to last."""
        parent, found = self.root(namespace), []
        step = self.index.run_tokens or max(1, len(tokens))
        for begin in range(0, len(tokens), step):
            end = min(begin + step, len(tokens))
            if self.index.covering(parent, tokens, begin, end) is None:
                found.append(Missing(parent, begin, end))
            parent = next_digest(parent, tokens[begin:end])
        return found

    def estimated_bytes(self, num_tokens: int) -> int:
        return self.limits.fixed_bytes + num_tokens * self.limits.bytes_per_token + RUN_OVERHEAD_BYTES

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
            if run.is_private and not run.num_pins and self.index.get(run.run_id) is run:
                self._drop(run)

    def used(self, parts: list[Part], now: float) -> None:
        """Note that a request reuses these runs."""
        for part in reversed(parts):
            part.run.num_hits += 1
            self._touch(part.run, now)

    def keep(self, tokens: list[int], namespace: str) -> None:
        """Never evict what there is of these tokens (a pinned prompt)."""
        for part in self.index.match(self.root(namespace), tokens, len(tokens)):
            part.run.is_kept = True

    # -- transfers ----------------------------------------------------------------------------------------------------------

    def save(
        self, missing: Missing, seq_id: int, tokens: list[int], now: float, *, is_kept: bool = False, is_private: bool = False
    ) -> bool:
        """Order the copy of a piece of a sequence into host memory. False: no room could be made."""
        digest = next_digest(missing.parent, tokens[missing.begin : missing.end])
        if self.index.with_digest(digest) is not None:
            return False  # being moved at this moment, or broken on its only level
        if missing.begin > 0 and self.index.with_digest(missing.parent) is None:
            return False  # what comes before it is nowhere: it could never be found
        num_bytes = self.estimated_bytes(missing.end - missing.begin)
        if not self._make_room_after(missing.parent, num_bytes, now):
            return False
        run = self._new_run(missing.parent, digest, missing.begin, tuple(tokens[missing.begin : missing.end]), num_bytes, now)
        run.is_kept, run.is_private = is_kept, is_private
        run.host = Place.PRESENT  # the engine copies it before anything that is ordered later
        self.host.expect(run)
        self.host.arrived(run)
        self._emit(SaveRun(run.run_id, seq_id, missing.begin, missing.end))
        for shorter in self.index.covered_by(run):
            if not shorter.num_pins:
                run.num_hits += shorter.num_hits
                run.is_kept |= shorter.is_kept
                self._drop(shorter)
        if self.is_disk_on and not is_private:
            self._to_write.append(run)
        return True

    def fetch(self, part: Part, now: float) -> bool:
        """See that a run is, or will be, in host memory. False: it cannot be."""
        run = part.run
        if run.host is not Place.ABSENT:
            return True
        if run.disk is not Place.PRESENT:
            return False
        run.num_pins += 1  # making room must not evict it
        if not self._make_host_room(run.num_bytes, now):
            run.num_pins -= 1
            return False
        run.host = Place.ARRIVING
        self.host.expect(run)
        self._emit(ReadRun(run.run_id, run.parent, run.digest, run.start, run.tokens, run.num_bytes))
        return True

    def restore(self, digests: Iterable[bytes], now: float) -> int:
        """Fetch these runs in order, until host memory is full; returns their tokens."""
        num_tokens = 0
        for digest in digests:
            run = self.index.with_digest(digest)
            if run is None:
                continue
            if self.host.budget.num_free < run.num_bytes or not self.fetch(Part(run, run.start, run.end), now):
                break  # nothing is evicted for a guess
            num_tokens += len(run.tokens)
        return num_tokens

    def moved(self, results: Iterable[KvMoved], now: float) -> None:
        """Book what came of transfers."""
        for result in results:
            if result.is_ok:
                self._moved[Way(result.way)] += 1
                self.bandwidths.observe(Way(result.way), result.num_bytes, result.duration_s, now)
            self.version += 1
            if result.is_broken:
                self.switch_off_disk()
            run = self.index.get(result.run_id)
            if run is not None:
                self._book(Way(result.way), run, result)

    def _book(self, way: Way, run: Run, result: KvMoved) -> None:
        if way is Way.SAVE:
            if result.is_ok:
                self._resize(run, result.num_bytes)
            else:
                self._leave_host(run)
        elif way is Way.LOAD:
            if not result.is_ok and not run.num_pins:
                self._drop(run)  # whatever is wrong with it, nobody shall try again
        elif way is Way.WRITE:
            if run.run_id not in self._writing:
                return
            self._writing.discard(run.run_id)
            run.num_pins -= 1
            if result.is_ok and run.disk is Place.ARRIVING:
                run.disk = Place.PRESENT
                self.disk.arrived(run)
            elif run.disk is Place.ARRIVING:
                self._leave_disk(run)
        elif way is Way.READ and run.host is Place.ARRIVING:
            run.num_pins -= 1
            if result.is_ok:
                run.host = Place.PRESENT
                self.host.arrived(run)
            else:
                self._leave_host(run, is_empty=True)
                if run.disk is Place.PRESENT:
                    self._leave_disk(run)

    # -- background ---------------------------------------------------------------------------------------------------------

    @property
    def has_writes_to_order(self) -> bool:
        return self.is_disk_on and bool(self._to_write) and len(self._writing) < MAX_WRITES_IN_FLIGHT

    def order_writes(self, now: float) -> None:
        """Hand runs that are only in host memory to the disk, some at a time."""
        while self.has_writes_to_order:
            run = self._to_write.popleft()
            if self.index.get(run.run_id) is run and run.host is Place.PRESENT and run.disk is Place.ABSENT:
                self._write(run, now)

    def _write(self, run: Run, now: float) -> None:
        run.num_pins += 1
        if not self._make_disk_room(run.num_bytes, now):
            run.num_pins -= 1
            return
        run.disk = Place.ARRIVING
        self.disk.expect(run)
        self._writing.add(run.run_id)
        self._emit(WriteRun(run.run_id, run.parent, run.digest, run.start, run.tokens))

    def expire(self, now: float) -> None:
        """Drop what was not used for `ttl_s`; called at every step, it looks from time to time."""
        if now < self._next_expiry_s:
            return
        self._next_expiry_s = now + self.limits.ttl_s / EXPIRY_LOOKS

        def is_due(run: Run) -> bool:
            return now - run.last_used_s > self.limits.ttl_s and not run.is_kept and not run.num_pins

        for level in (self.host, self.disk):
            while (run := level.oldest(lambda run: is_due(run) and not self.index.children(run))) is not None:
                self._drop(run)

    def adopt(self, found: Iterable[FoundRun], now: float) -> None:
        """Take over what is on disk at the start; what does not fit the quota is deleted, oldest first."""
        for one in sorted(found, key=lambda one: -one.age_s):
            if self.index.with_digest(one.digest) is not None or not self.is_disk_on:
                continue
            run = self._new_run(one.parent, one.digest, one.start, one.tokens, one.num_bytes, now - one.age_s)
            run.disk = Place.PRESENT
            self.disk.expect(run)
            self.disk.arrived(run)
        self._make_disk_room(0, now)

    def switch_off_disk(self) -> None:
        """The disk cannot be used any more: what is there counts as gone. Host memory goes on."""
        self.is_disk_on = False
        self._to_write.clear()
        for run in self.disk.runs():
            if run.run_id in self._writing:
                self._writing.discard(run.run_id)
                run.num_pins -= 1
            run.disk = Place.ABSENT
            self.disk.remove(run)
            self._forget_if_gone(run)

    def clear(self, *, with_disk: bool) -> None:
        """Drop everything that nobody needs at this moment, pinned prompts included."""
        for run in reversed(self.index.runs()):
            run.is_kept = False
            if run.num_pins == 0 and (with_disk or run.disk is Place.ABSENT):
                self._drop(run)

    # -- internals ----------------------------------------------------------------------------------------------------------

    def _new_run(
        self, parent: bytes, digest: bytes, start: int, tokens: tuple[int, ...], num_bytes: int, last_used_s: float
    ) -> Run:
        self._num_runs += 1
        run = Run(self._num_runs, parent, digest, start, tokens, num_bytes)
        run.last_used_s = last_used_s
        self.index.add(run)
        return run

    def _touch(self, run: Run, now: float) -> None:
        run.last_used_s = now
        for level in (self.host, self.disk):
            if run in level:
                level.touch(run)

    def _resize(self, run: Run, num_bytes: int) -> None:
        for level in (self.host, self.disk):
            if run in level:
                level.resize(run, num_bytes)
        run.num_bytes = num_bytes

    def _make_room_after(self, parent: bytes, num_bytes: int, now: float) -> bool:
        """Make room in host memory without evicting the run that the new one follows."""
        predecessor = self.index.with_digest(parent)
        if predecessor is not None:
            predecessor.num_pins += 1
        is_made = self._make_host_room(num_bytes, now)
        if predecessor is not None:
            predecessor.num_pins -= 1
        return is_made

    def _make_host_room(self, num_bytes: int, now: float) -> bool:
        return self._make_room(self.host, num_bytes, now, self._may_leave_host, self._leave_host)

    def _make_disk_room(self, num_bytes: int, now: float) -> bool:
        return self._make_room(self.disk, num_bytes, now, self._may_leave_disk, self._leave_disk)

    def _make_room(
        self, level: Level, num_bytes: int, now: float, may_go: Callable[[Run], bool], leave: Callable[[Run], None]
    ) -> bool:
        if num_bytes > level.budget.capacity_bytes:
            return False
        while level.budget.num_free < num_bytes:
            victim = level.victim(may_go, now)
            if victim is None:
                return False
            self._num_evicted["host" if level is self.host else "disk"] += 1
            leave(victim)
        return True

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

    def _leave_host(self, run: Run, *, is_empty: bool = False) -> None:
        run.host = Place.ABSENT
        self.host.remove(run)
        if not is_empty:
            self._emit(DropRun(run.run_id))
        self._forget_if_gone(run)

    def _leave_disk(self, run: Run) -> None:
        run.disk = Place.ABSENT
        self.disk.remove(run)
        self._emit(DeleteRun(run.run_id, run.digest))
        self._forget_if_gone(run)

    def _drop(self, run: Run) -> None:
        assert run.num_pins == 0, "a pinned run stays"
        if run.disk is not Place.ABSENT:
            self._leave_disk(run)
        if run.host is not Place.ABSENT:
            self._leave_host(run)

    def _forget_if_gone(self, run: Run) -> None:
        """Gone from its last level: forget it, and what can only be found through it."""
        if run.host is not Place.ABSENT or run.disk is not Place.ABSENT or self.index.get(run.run_id) is not run:
            return
        self.version += 1
        self.index.remove(run)
        for child in list(self.index.children(run)):
            if child.num_pins == 0:
                self._drop(child)

    def stats(self) -> KvLevelsChanged:
        """Where everything stands, and totals since the start."""
        return KvLevelsChanged(
            host_bytes=self.host.budget.used_bytes,
            host_capacity_bytes=self.limits.host_bytes,
            num_host_tokens=self.host.num_tokens,
            disk_bytes=self.disk.budget.used_bytes,
            disk_capacity_bytes=self.limits.disk_bytes,
            num_disk_tokens=self.disk.num_tokens,
            is_disk_on=self.is_disk_on,
            num_saved=self._moved[Way.SAVE],
            num_loaded=self._moved[Way.LOAD],
            num_written=self._moved[Way.WRITE],
            num_read=self._moved[Way.READ],
            num_evicted_host=self._num_evicted["host"],
            num_evicted_disk=self._num_evicted["disk"],
        )
