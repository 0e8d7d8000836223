"""Carries out the KV operations of a plan, in order: on sequences by the executor, between levels here.

TrimSequence, CopyPrefix          executor
SaveRun, LoadRun                  executor <-> host memory, at once
WriteRun, ReadRun, DeleteRun      host memory <-> disk, later; `poll` says when
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ultrafast.core.clock import Clock
from ultrafast.core.step import (
    CopyPrefix,
    DeleteRun,
    DropRun,
    KvMoved,
    KvOp,
    LoadRun,
    ReadRun,
    SaveRun,
    TrimSequence,
    WriteRun,
)
from ultrafast.engine.executor import Executor
from ultrafast.engine.kvstore.arena import HostArena
from ultrafast.engine.kvstore.store import RunStore


class KvCarrier:
    """The engine thread's.

    Args:
        disk: None = there is no disk level, and no plan asks for one.
    """

    def __init__(self, executor: Executor, clock: Clock, disk: RunStore | None = None) -> None:
        self.arena = HostArena()
        self._executor = executor
        self._clock = clock
        self._disk = disk
        self._results: list[KvMoved] = []
        self._wanted: set[int] = set()  # runs being read that have not been dropped meanwhile

    def on_done(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from any thread, when `poll` has something that no call here brought about."""
        if self._disk is not None:
            self._disk.on_done(wake)

    def apply(self, ops: Sequence[KvOp]) -> tuple[str, ...]:
        """Apply operations in order.

        Returns:
            ids of requests whose sequence could not be shared or loaded and is empty now; what the plan wanted to append to it
            later is skipped. The caller must plan without that reuse.
        """
        failed: dict[str, int] = {}
        for op in ops:
            if isinstance(op, CopyPrefix | TrimSequence):
                for request_id in self._executor.apply_kv((op,)):
                    assert isinstance(op, CopyPrefix), "only sharing can fail"
                    failed[request_id] = op.dst
            elif isinstance(op, LoadRun):
                if op.request_id not in failed and not self._load(op):
                    failed[op.request_id] = op.seq_id
            elif isinstance(op, SaveRun) and op.seq_id in failed.values():  # what it should copy is not there
                self._results.append(KvMoved(op.run_id, "save", is_ok=False))
            else:
                self._move(op)
        return tuple(failed)

    def poll(self) -> list[KvMoved]:
        """Return what came of transfers since the last call."""
        if self._disk is not None:
            for moved, data in self._disk.poll():
                if data is not None and moved.run_id in self._wanted:
                    self.arena.put(moved.run_id, data)
                if moved.way == "read":
                    self._wanted.discard(moved.run_id)
                self._results.append(moved)
        results, self._results = self._results, []
        return results

    def _move(self, op: SaveRun | DropRun | WriteRun | ReadRun | DeleteRun) -> None:
        if isinstance(op, SaveRun):
            self._save(op)
        elif isinstance(op, DropRun):
            self.arena.drop(op.run_id)
            self._wanted.discard(op.run_id)
        elif self._disk is None:
            raise AssertionError("a plan uses a disk level that is not there")
        elif isinstance(op, WriteRun):
            data = self.arena.get(op.run_id)
            if data is None:  # its save failed; the next plan knows
                self._results.append(KvMoved(op.run_id, "write", is_ok=False))
            else:
                self._disk.submit((op, data))
        else:
            if isinstance(op, ReadRun):
                self._wanted.add(op.run_id)
            self._disk.submit(op)

    def _save(self, op: SaveRun) -> None:
        begin_s = self._clock()
        data = self._executor.save_kv(op.seq_id, op.begin, op.end)
        if data is None:
            self._results.append(KvMoved(op.run_id, "save", is_ok=False))
            return
        self.arena.put(op.run_id, data)
        self._results.append(KvMoved(op.run_id, "save", True, len(data), self._clock() - begin_s))

    def _load(self, op: LoadRun) -> bool:
        begin_s = self._clock()
        data = self.arena.get(op.run_id)
        if data is None:  # its save failed, or it was never read
            self._executor.apply_kv((TrimSequence(op.seq_id, 0),))
            return False
        is_loaded = self._executor.load_kv(op.seq_id, op.begin, op.end, data)
        num_bytes = len(data) if is_loaded else 0
        self._results.append(KvMoved(op.run_id, "load", is_loaded, num_bytes, self._clock() - begin_s))
        return is_loaded
