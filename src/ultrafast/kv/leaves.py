"""Cached leaves: finished sequences whose KV stays on the device for whoever begins alike, and which of them goes when.

finish --keep--> |leaf|leaf|leaf|     at most `max_num`, and `max_tokens` cells that nobody runs on
|    |    |    |
|    |    |    +--> evicted for want of room (the one of least value), copied to host memory first
|    |    +-------> evicted in advance for what waits, where host memory has it already
|    +------------> released: its idle cells have slowed the others more than fetching it from host memory would take
+-----------------> freed by a longer one that starts with the same tokens
"""

from __future__ import annotations

from collections.abc import Callable

from ultrafast.kv.demotion import Demotion
from ultrafast.kv.eviction import choose_leaf, eviction_key
from ultrafast.kv.segment import SequenceKv
from ultrafast.kv.tree import PrefixTree

OVERFLOW_SHARE = 2
"""While they are being copied to host memory, the cached leaves may exceed `max_tokens`, up to 1/2 of the pool."""
HELD_FACTOR = 2.0
"""A leaf stays until it has cost so many times what bringing it back takes: whoever comes for it waits for that, whereas the cost
of holding is spread over all. So neither costs more than 1 + HELD_FACTOR times what the right one would have (ski rental)."""
_LOOKS_PER_HOLD = 4


class CachedLeaves:
    """Owned by the ledger, which alone opens and closes sequences.

    Args:
        tree: of the pool.
        capacity_tokens: cells in the pool.
        max_num: leaves to keep; 0 = nothing is kept.
        max_tokens: evictable cells to keep at most when a request finishes, its own aside.
        demotion: copies to host memory, or None.
        free: forgets a sequence, and removes it here.
    """

    def __init__(
        self,
        tree: PrefixTree,
        *,
        capacity_tokens: int,
        max_num: int,
        max_tokens: int,
        demotion: Demotion | None,
        free: Callable[[SequenceKv], None],
    ) -> None:
        self._tree = tree
        self._capacity_tokens = capacity_tokens
        self._max_num = max_num
        self._max_tokens = max_tokens
        self._demotion = demotion
        self._free = free
        self._leaves: dict[int, SequenceKv] = {}
        self._next_look_s = 0.0

    def __len__(self) -> int:
        return len(self._leaves)

    def all(self) -> list[SequenceKv]:
        return list(self._leaves.values())

    @property
    def are_kept(self) -> bool:
        """There are leaves at all."""
        return self._max_num > 0

    def keep(self, sequence: SequenceKv) -> None:
        """A sequence has become a leaf; `trim` sees to the limits."""
        self._leaves[sequence.seq_id] = sequence
        if self._demotion is not None:
            self._demotion.want(sequence)

    def forget(self, sequence: SequenceKv) -> None:
        """A sequence is gone; it need not have been a leaf."""
        self._leaves.pop(sequence.seq_id, None)

    def trim(self, now: float) -> None:
        """Evict down to the limits, after one more was kept.

        The newest leaf stays however long it is: one long conversation at a time is the commonest use of all. With levels below
        the pool `shrink` sees to the cells, after copying.
        """
        while len(self._leaves) > self._max_num:
            self.evict_one(now)
        while self._demotion is None and self._tree.num_evictable > self._max_tokens and len(self._leaves) > 1:
            if not self.evict_one(now, must_free=True):
                break

    def evict_one(self, now: float, *, must_free: bool = False) -> bool:
        """Evict the cached leaf of least value; with `must_free`, only one that holds evictable cells.

        What a request being admitted needs is safe: it is shared by then, so it is no longer evictable, whatever becomes of the
        leaf it came from.

        Returns:
            False when there is no such leaf. Each success leaves fewer leaves, so a loop over it ends.
        """
        leaf = choose_leaf(leaf for leaf in self._leaves.values() if not must_free or self._tree.num_reclaimable(leaf) > 0)
        if leaf is None:
            return False
        if self._demotion is not None and leaf.namespace is not None:
            self._demotion.save_evicted(leaf, leaf.namespace, now)
        self._free(leaf)
        return True

    def prepare_room(self, demotion: Demotion, num_wanted: int, num_likely: int) -> None:
        """See that room can be had at once: see `KvLedger.prepare_room`."""
        num_free = self._capacity_tokens - self._tree.num_used
        for leaf in sorted(self._leaves.values(), key=eviction_key):
            num_cells = self._tree.num_reclaimable(leaf)
            if num_free >= num_wanted + num_likely or leaf.is_kept:
                return
            if demotion.is_wanted(leaf):
                demotion.hurry(leaf)
                return
            if num_free < num_wanted and num_cells:
                self._free(leaf)
            num_free += num_cells

    def shrink(self, demotion: Demotion, now: float, *, is_busy: bool) -> None:
        """Bring the leaves down to what they may hold: those copied already at once, others when they are copied.

        While nobody runs, idle cells slow nobody down, and the newest leaf stays however long it is.
        """
        while self._tree.num_evictable > self._max_tokens and (is_busy or len(self._leaves) > 1):
            leaf = choose_leaf(leaf for leaf in self._leaves.values() if self._tree.num_reclaimable(leaf) > 0)
            assert leaf is not None, "evictable cells without a leaf that holds them"
            if leaf.is_kept:
                return
            if demotion.is_wanted(leaf) and self._tree.num_evictable < self._capacity_tokens // OVERFLOW_SHARE:
                demotion.hurry(leaf)
                return
            self.evict_one(now, must_free=True)

    def may_be_idle(self, idle_cell_s: float) -> bool:
        """Whether `release_idle` may find somebody: one comparison, for every step."""
        return idle_cell_s >= self._next_look_s

    def release_idle(self, demotion: Demotion, idle_cell_s: float, load_token_s: float, ahead_s: float) -> None:
        """Free leaves that host memory has, once holding them has cost more than loading them again would.

        Each row of a step looks at every cell in use, also at those that are masked for it: an idle cell slows down all who run.

        Args:
            demotion: knows what has been copied.
            idle_cell_s: what one idle cell has cost all steps so far, seconds.
            load_token_s: what loading one token from host memory takes, seconds.
            ahead_s: what it will cost steps to come, seconds. It does not put off the next look: those steps may never be.
        """
        hold_s = HELD_FACTOR * load_token_s
        self._next_look_s = idle_cell_s + hold_s / _LOOKS_PER_HOLD
        for leaf in self.all():
            if leaf.is_kept or idle_cell_s + ahead_s < leaf.held_since_s + hold_s:
                continue
            if demotion.is_wanted(leaf):
                demotion.hurry(leaf)
            elif self._tree.num_reclaimable(leaf) and demotion.has_copy(leaf):
                self._free(leaf)
