"""KV outside the device: host memory and disk, as bookkeeping. The bytes are in `engine.kvstore`.

    device (the pool: kv.ledger) --save--> host memory --write--> disk
                                 <--load--             <--read---

Every arrow is an operation for the engine, written down here and answered later by `moved`. Bytes are charged before the
operation is handed out and refunded when it is undone, so no level ever holds more than its budget. A run in transfer, or needed
by a request, is pinned: it is not evicted. What comes of a transfer whose run is gone meanwhile is recognised by its id, which
is never used twice, and ignored.

    holdings.py      which run is on which level, pins, eviction
    disk_writes.py   what is on its way to disk
    here             what there is of a sequence, copies and reads, and what came of them
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ultrafast.core.events import KvLevelsChanged
from ultrafast.core.step import KvMoved, KvOp, ReadRun, SaveRun
from ultrafast.kv.digest import next_digest, root_digest
from ultrafast.kv.disk_writes import DiskWrites
from ultrafast.kv.gate import Bandwidths, Way, worth_fetching
from ultrafast.kv.holdings import Holdings
from ultrafast.kv.index import Part
from ultrafast.kv.level import LevelLimits
from ultrafast.kv.run import RUN_TOKENS, FoundRun, Missing, Place, Run

_WAYS = frozenset(Way)
"""A deletion is none: nothing waits for it."""


class KvLevels:
    """Owns the accounts of host memory and disk. One thread owns it, the same that owns the ledger.

    Args:
        emit: takes the operations, in order, together with the ledger's.

    Attributes:
        bandwidths: how fast bytes move, measured.
    """

    def __init__(self, limits: LevelLimits, emit: Callable[[KvOp], None]) -> None:
        self.limits = limits
        self.bandwidths = Bandwidths()
        self.holdings = Holdings(limits, emit)
        self.writes = DiskWrites(self.holdings, self.bandwidths, emit, is_on=limits.disk_bytes > 0)
        self._emit = emit
        self._num_moved = dict.fromkeys(Way, 0)

    # -- what is there ------------------------------------------------------------------------------------------------------

    def root(self, namespace: str) -> bytes:
        return root_digest(self.limits.model_key, namespace)

    def find(self, tokens: list[int], namespace: str, start: int, limit: int) -> list[Part]:
        """Find what host and disk have of `tokens[start:limit]`: contiguous from `start` on, empty when nothing is.

        Where sequences cannot be cut the only part begins at 0 and replaces what the device has.
        """
        if not len(self.holdings.index):
            return []
        parts = [part for part in self.holdings.index.match(self.root(namespace), tokens, limit) if part.end > start]
        if parts and parts[0].begin < start and self.limits.can_trim:
            parts[0] = Part(parts[0].run, start, parts[0].end)
        return parts

    def choose(self, parts: list[Part], token_s: float | None, now: float) -> list[Part]:
        """Those first parts that are worth fetching."""
        return worth_fetching(parts, self.bandwidths, token_s, now)

    def load_token_s(self, now: float) -> float:
        """What bringing a token back from host memory takes, as one of a full run, seconds."""
        return self.bandwidths.seconds(Way.LOAD, self.limits.estimated_bytes(RUN_TOKENS), now) / RUN_TOKENS

    def unsaved(self, tokens: list[int], namespace: str) -> list[Missing]:
        """What of a sequence is in no level outside the device, first to last."""
        parent, found = self.root(namespace), []
        step = self.holdings.index.run_tokens or max(1, len(tokens))
        for begin in range(0, len(tokens), step):
            end = min(begin + step, len(tokens))
            if self.holdings.index.covering(parent, tokens, begin, end) is None:
                found.append(Missing(parent, begin, end))
            parent = next_digest(parent, tokens[begin:end])
        return found

    # -- transfers ----------------------------------------------------------------------------------------------------------

    def save(
        self, missing: Missing, seq_id: int, tokens: list[int], now: float, *, is_kept: bool = False, is_private: bool = False
    ) -> bool:
        """Order the copy of a piece of a sequence into host memory. False: no room could be made."""
        own = tuple(tokens[missing.begin : missing.end])
        digest = next_digest(missing.parent, own)
        if self.holdings.index.with_digest(digest) is not None:
            return False  # being moved at this moment, or broken on its only level
        if missing.begin > 0 and self.holdings.index.with_digest(missing.parent) is None:
            return False  # what comes before it is nowhere: it could never be found
        num_bytes = self.limits.estimated_bytes(missing.end - missing.begin)
        if not self.holdings.make_room_after(missing.parent, num_bytes, now):
            return False
        run = self.holdings.new_run(
            missing.parent, digest, missing.begin, tuple(tokens[missing.begin : missing.end]), num_bytes, now
        )
        run.is_kept, run.is_private = is_kept, is_private
        run.host = Place.PRESENT  # the engine copies it before anything that is ordered later
        self.holdings.host.expect(run)
        self.holdings.host.arrived(run)
        self._emit(SaveRun(run.run_id, seq_id, missing.begin, missing.end))
        for shorter in self.holdings.index.covered_by(run):
            if not shorter.num_pins:
                run.num_hits += shorter.num_hits
                run.is_kept |= shorter.is_kept
                self.holdings.drop(shorter)
        if not is_private:
            self.writes.want(run)
        return True

    def fetch(self, part: Part, now: float) -> bool:
        """See that a run is, or will be, in host memory. False: it cannot be."""
        run = part.run
        if run.host is not Place.ABSENT:
            return True
        if run.disk is not Place.PRESENT:
            return False
        run.num_pins += 1  # making room must not evict it
        if not self.holdings.make_host_room(run.num_bytes, now):
            run.num_pins -= 1
            return False
        run.host = Place.ARRIVING
        self.holdings.host.expect(run)
        self._emit(ReadRun(run.run_id, run.parent, run.digest, run.start, run.tokens, run.num_bytes))
        return True

    def restore(self, digests: Iterable[bytes], now: float) -> int:
        """Fetch these runs in order, until host memory is full; returns their tokens."""
        num_tokens = 0
        for digest in digests:
            run = self.holdings.index.with_digest(digest)
            if run is None:
                continue
            if self.holdings.host.budget.num_free < run.num_bytes or not self.fetch(Part(run, run.start, run.end), now):
                break  # nothing is evicted for a guess
            num_tokens += len(run.tokens)
        return num_tokens

    def moved(self, results: Iterable[KvMoved], now: float) -> None:
        """Book what came of transfers."""
        for result in results:
            if result.is_ok:
                self._num_moved[Way(result.way)] += 1
                self.bandwidths.observe(Way(result.way), result.num_bytes, result.duration_s, now)
            if result.is_broken:
                self.writes.switch_off()
            run = self.holdings.index.get(result.run_id)
            if run is not None and result.way in _WAYS:
                self._book(Way(result.way), run, result)

    def _book(self, way: Way, run: Run, result: KvMoved) -> None:
        if way is Way.SAVE:
            if result.is_ok:
                self.holdings.resize(run, result.num_bytes)
            else:
                self.holdings.leave_host(run)
        elif way is Way.LOAD:
            if not result.is_ok and not run.num_pins:
                self.holdings.drop(run)  # whatever is wrong with it, nobody shall try again
        elif way is Way.WRITE:
            self.writes.done(run, is_ok=result.is_ok)
        elif way is Way.READ and run.host is Place.ARRIVING:
            run.num_pins -= 1
            if result.is_ok:
                run.host = Place.PRESENT
                self.holdings.host.arrived(run)
            else:
                self.holdings.leave_host(run, is_empty=True)
                if run.disk is Place.PRESENT:
                    self.holdings.leave_disk(run)

    def adopt(self, found: Iterable[FoundRun], now: float) -> None:
        """Take over what is on disk at the start; what does not fit the quota is deleted, oldest first."""
        for one in sorted(found, key=lambda one: -one.age_s):
            if self.holdings.index.with_digest(one.digest) is not None or not self.writes.is_on:
                continue
            run = self.holdings.new_run(one.parent, one.digest, one.start, one.tokens, one.num_bytes, now - one.age_s)
            run.disk = Place.PRESENT
            self.holdings.disk.expect(run)
            self.holdings.disk.arrived(run)
        self.holdings.make_disk_room(0, now)

    def stats(self) -> KvLevelsChanged:
        """Where everything stands, and totals since the start."""
        return KvLevelsChanged(
            host_bytes=self.holdings.host.budget.used_bytes,
            host_capacity_bytes=self.limits.host_bytes,
            num_host_tokens=self.holdings.host.num_tokens,
            disk_bytes=self.holdings.disk.budget.used_bytes,
            disk_capacity_bytes=self.limits.disk_bytes,
            num_disk_tokens=self.holdings.disk.num_tokens,
            is_disk_on=self.writes.is_on,
            num_saved=self._num_moved[Way.SAVE],
            num_loaded=self._num_moved[Way.LOAD],
            num_written=self._num_moved[Way.WRITE],
            num_read=self._num_moved[Way.READ],
            num_evicted_host=self.holdings.num_evicted_host,
            num_evicted_disk=self.holdings.num_evicted_disk,
        )
