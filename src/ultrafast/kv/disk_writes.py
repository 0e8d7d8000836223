"""What is on its way from host memory to disk: some runs at a time, in the background, in the order in which they were saved.

Checksums and copies into the page cache take a core while they last, so while requests run writes start at a distance.

saved --want--> |run|run|run| --order--> writing (pinned, at most MAX_WRITES_IN_FLIGHT) --done--> on disk, or not
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ultrafast.core.step import KvOp, WriteRun
from ultrafast.kv.gate import Bandwidths, Way
from ultrafast.kv.holdings import Holdings
from ultrafast.kv.run import Place, Run

MAX_WRITES_IN_FLIGHT = 4


class DiskWrites:
    """Owned by `KvLevels`.

    Args:
        bandwidths: how fast bytes move.
        is_on: there is a disk level.
        emit: takes the operations.

    Attributes:
        is_on: False also after a failure: the disk is never used again.
    """

    def __init__(self, holdings: Holdings, bandwidths: Bandwidths, emit: Callable[[KvOp], None], *, is_on: bool) -> None:
        self._holdings = holdings
        self._bandwidths = bandwidths
        self._next_s = 0.0
        self._emit = emit
        self._queue: deque[Run] = deque()
        self._under_way: set[int] = set()
        self.is_on = is_on

    @property
    def can_order(self) -> bool:
        """Something waits, and may be written now."""
        return self.is_on and bool(self._queue) and len(self._under_way) < MAX_WRITES_IN_FLIGHT

    def is_writing(self, run: Run) -> bool:
        return run.run_id in self._under_way

    def want(self, run: Run) -> None:
        """A run came to host memory: it is to go on to disk."""
        if self.is_on:
            self._queue.append(run)

    def order(self, now: float, *, is_busy: bool) -> None:
        """Hand over what may be written now; what has left host memory meanwhile, or fits nowhere, is left out."""
        while self.can_order and (now >= self._next_s or not is_busy):
            run = self._queue.popleft()
            self._next_s = now + self._bandwidths.apart_s(Way.WRITE, run.num_bytes, now)
            if self._holdings.is_held(run) and run.host is Place.PRESENT and run.disk is Place.ABSENT:
                self._order(run, now)

    def done(self, run: Run, *, is_ok: bool) -> None:
        """Book what came of a write. One that is not under way any more is ignored."""
        if not self.is_writing(run):
            return
        self._forget(run)
        if run.disk is not Place.ARRIVING:
            return
        if is_ok:
            run.disk = Place.PRESENT
            self._holdings.disk.arrived(run)
        else:
            self._holdings.leave_disk(run)

    def switch_off(self) -> None:
        """The disk cannot be used any more: what is there counts as gone. Host memory goes on."""
        self.is_on = False
        self._queue.clear()
        for run in self._holdings.disk.runs():
            if self.is_writing(run):
                self._forget(run)
        self._holdings.lose_disk()

    def _order(self, run: Run, now: float) -> None:
        run.num_pins += 1
        if not self._holdings.make_disk_room(self._holdings.disk.bytes_of(run), now):
            run.num_pins -= 1
            return
        run.disk = Place.ARRIVING
        self._holdings.disk.expect(run)
        self._under_way.add(run.run_id)
        self._emit(WriteRun(run.run_id, run.parent, run.digest, run.start, run.tokens))

    def _forget(self, run: Run) -> None:
        self._under_way.discard(run.run_id)
        run.num_pins -= 1
