"""Copies KV from the device to host memory before it is needed there, or at the last moment.

in advance   a finished sequence is copied run by run, one per step, using a tenth of the time while others run
at once      what is evicted or moved away has its rest copied first, if that is worth the pause
"""

from __future__ import annotations

from collections import OrderedDict

from ultrafast.kv.gate import Way
from ultrafast.kv.levels import KvLevels
from ultrafast.kv.run import Missing
from ultrafast.kv.segment import SequenceKv

MIN_TOKENS = 16
"""Shorter sequences are cheaper to compute again than to keep account of."""
MAX_PAUSE_S = 0.02
"""Evictions hold up a step for at most about this long together; what is not copied by then is lost."""


class Demotion:
    """Owned by the ledger, which tells it of every sequence that is kept, evicted or freed."""

    def __init__(self, levels: KvLevels) -> None:
        self._levels = levels
        self._queue: OrderedDict[SequenceKv, list[Missing]] = OrderedDict()
        self._next_s = 0.0
        self._evicted_s = 0.0

    @property
    def has_work(self) -> bool:
        """Something is to be copied in advance."""
        return bool(self._queue)

    def begin_plan(self) -> None:
        """A new step has its own time to spend on what is evicted."""
        self._evicted_s = 0.0

    def want(self, leaf: SequenceKv) -> None:
        """A finished sequence is kept on the device: copy it in advance."""
        if leaf.namespace is None or leaf.length < MIN_TOKENS:
            return
        if leaf.is_kept:
            self._levels.holdings.keep(leaf.tokens(), leaf.namespace)
        missing = self._levels.unsaved(leaf.tokens(), leaf.namespace)
        if missing:
            self._queue[leaf] = missing

    def forget(self, sequence: SequenceKv) -> None:
        """The sequence is gone, or not a leaf any more."""
        self._queue.pop(sequence, None)

    def is_wanted(self, leaf: SequenceKv) -> bool:
        """Whether some of it is still to be copied."""
        return leaf in self._queue

    def has_copy(self, leaf: SequenceKv) -> bool:
        """Whether all of it is in host memory or on disk. O(length)."""
        return leaf.namespace is not None and not self._levels.unsaved(leaf.tokens(), leaf.namespace)

    def hurry(self, leaf: SequenceKv) -> None:
        """Copy this one next."""
        self._queue.move_to_end(leaf, last=False)

    def step(self, now: float, *, is_busy: bool) -> None:
        """Copy at most one run in advance."""
        if not self._queue or (is_busy and now < self._next_s):
            return
        leaf, missing = next(iter(self._queue.items()))
        piece = missing.pop(0)
        is_saved = self._levels.save(piece, leaf.seq_id, leaf.tokens(), now, is_kept=leaf.is_kept)
        if not missing or not is_saved:
            self.forget(leaf)
        num_bytes = self._levels.limits.estimated_bytes(piece.end - piece.begin)
        self._next_s = now + self._levels.bandwidths.apart_s(Way.SAVE, num_bytes, now)

    def save_evicted(self, leaf: SequenceKv, namespace: str, now: float) -> None:
        """Copy what no other level has of a cached sequence: the first runs that fit into the pause that a step may have."""
        self._save_rest(leaf, namespace, now, MAX_PAUSE_S, is_private=False)

    def save_rest(self, sequence: SequenceKv, namespace: str, now: float, *, is_private: bool) -> None:
        """Copy what no other level has of a running sequence, however long it takes."""
        self._save_rest(sequence, namespace, now, None, is_private=is_private)

    def _save_rest(
        self, sequence: SequenceKv, namespace: str, now: float, max_pause_s: float | None, *, is_private: bool
    ) -> None:
        self.forget(sequence)
        if sequence.length < MIN_TOKENS:
            return
        tokens = sequence.tokens()
        for piece in self._levels.unsaved(tokens, namespace):
            if max_pause_s is not None:
                num_bytes = self._levels.limits.estimated_bytes(piece.end - piece.begin)
                self._evicted_s += self._levels.bandwidths.seconds(Way.SAVE, num_bytes, now)
                if self._evicted_s > max_pause_s:
                    return
            if not self._levels.save(piece, sequence.seq_id, tokens, now, is_private=is_private):
                return
