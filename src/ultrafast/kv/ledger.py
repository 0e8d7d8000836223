"""The ledger of the KV pool: sequence ids, running sequences, cached leaves, free cells.

    capacity |#### running ####|==== cached leaves only (evictable) ====|........ free ........|

Every change here is written down as a `KvOp` for the engine to follow; `take_ops` hands them out in order, exactly once.
The engine must apply them before the work that was planned with them. A sequence id is reused only after the operation that
empties it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ultrafast.core.step import CopyPrefix, KvOp, TrimSequence
from ultrafast.kv.demotion import Demotion
from ultrafast.kv.departure import Departures
from ultrafast.kv.leaves import CachedLeaves
from ultrafast.kv.level import LevelLimits
from ultrafast.kv.levels import KvLevels
from ultrafast.kv.segment import SequenceKv
from ultrafast.kv.tree import Match, PrefixTree

NUM_SPARE_SEQUENCES = 2
"""Sequence ids beyond running + cached: one is briefly both (a leaf arrives before another is evicted)."""


def num_sequences(max_num_running: int, max_num_cached: int) -> int:
    """How many sequence ids the engine must provide for these limits."""
    return max_num_running + max_num_cached + NUM_SPARE_SEQUENCES


@dataclass(frozen=True, slots=True)
class KvUsage:
    """How full the pool is, in cells; running + cached + free = capacity. Cells held by both, or held back, count as running."""

    num_running_tokens: int
    num_cached_tokens: int
    num_free_tokens: int
    block_size: int

    @property
    def num_used_blocks(self) -> int:
        """Cells in use, in whole blocks (a unit of reporting only: cells are handed out one by one)."""
        return -(-(self.num_running_tokens + self.num_cached_tokens) // self.block_size)

    @property
    def num_total_blocks(self) -> int:
        return (self.num_running_tokens + self.num_cached_tokens + self.num_free_tokens) // self.block_size


class KvLedger:
    """Owns the accounts of one KV pool.

    Args:
        capacity_tokens: cells in the pool.
        can_trim: sequences can be cut at any token. False (recurrent and hybrid models): a sequence is reused as a whole or
            not at all.
        has_cache: False = nothing is ever matched or kept; the caller's sequences are private then.
        max_cached_tokens: evictable cells to keep at most when a request finishes, its own aside; None = no limit.
        first_seq_id: sequence ids count from here.
        level_limits: host memory and disk below the pool; None = what leaves the pool is lost.

    Attributes:
        levels: the accounts of host memory and disk, or None.
        leaves: finished sequences that are kept.
        departures: copies of sequences that will have to leave, or None where they are moved in one piece.
        idle_cell_s: what one idle cell has cost all steps so far, seconds; who runs the steps adds to it.
        now: time of the current plan, set by its maker (for the ages of what is evicted meanwhile).
        num_held: cells set aside for what is being computed elsewhere; neither free nor anybody's yet.
        version: changes whenever cells may have become available or a new prefix was kept.
    """

    def __init__(
        self,
        *,
        capacity_tokens: int,
        max_num_running: int,
        max_num_cached: int,
        can_trim: bool,
        has_cache: bool,
        block_size: int,
        max_cached_tokens: int | None = None,
        level_limits: LevelLimits | None = None,
        first_seq_id: int = 0,
    ) -> None:
        self.capacity_tokens = capacity_tokens
        self.can_trim = can_trim
        self.has_cache = has_cache
        self._block_size = block_size
        self._tree = PrefixTree()
        num_ids = num_sequences(max_num_running, max_num_cached)
        self._free_ids = list(range(first_seq_id + num_ids - 1, first_seq_id - 1, -1))
        self._num_opened = 0
        self._ops: list[KvOp] = []
        has_levels = level_limits is not None and level_limits.host_bytes > 0
        self.levels = KvLevels(level_limits, self.note) if has_levels and level_limits else None
        self.demotion = Demotion(self.levels) if self.levels else None
        self.departures = Departures(self.levels) if self.levels and can_trim else None
        self.leaves = CachedLeaves(
            self._tree,
            capacity_tokens=capacity_tokens,
            max_num=max_num_cached if has_cache else 0,
            max_tokens=capacity_tokens if max_cached_tokens is None else max_cached_tokens,
            demotion=self.demotion,
            free=self.free,
        )
        self.idle_cell_s = 0.0
        self.now = 0.0
        self.num_held = 0
        self.version = 0

    @property
    def num_free(self) -> int:
        return self.capacity_tokens - self._tree.num_used - self.num_held

    @property
    def num_evictable(self) -> int:
        """Cells that evicting all cached leaves would free."""
        return self._tree.num_evictable

    @property
    def has_ops(self) -> bool:
        """Operations are waiting to be taken, or there is something to do in advance."""
        return bool(self._ops) or self.has_background

    @property
    def has_background(self) -> bool:
        return self.demotion is not None and (
            self.demotion.has_work or (self.levels is not None and self.levels.writes.can_order)
        )

    @property
    def usage(self) -> KvUsage:
        cached = self._tree.num_evictable
        return KvUsage(self._tree.num_used + self.num_held - cached, cached, self.num_free, self._block_size)

    def note(self, op: KvOp) -> None:
        """Add an operation for the engine, after those that are there."""
        self._ops.append(op)

    def take_ops(self) -> tuple[KvOp, ...]:
        """Hand out the operations since the last call, in order. The caller must see that the engine applies them."""
        ops, self._ops = tuple(self._ops), []
        return ops

    def match(self, tokens: list[int], namespace: str) -> Match | None:
        """Find the longest reusable prefix, at most `len(tokens) - 1`: the last token must be computed for its logits.

        The match is valid until the next call that changes the ledger. O(matched tokens).
        """
        if not self.has_cache:
            return None
        return self._tree.match(tokens, namespace, len(tokens) - 1, is_whole=not self.can_trim)

    def num_available(self, match: Match | None) -> int:
        """Cells that could be had for new tokens once `match` is shared: free ones, and evictable ones outside the match."""
        available = self.num_free + self._tree.num_evictable
        return available - self._tree.num_evictable_in(match) if match else available

    def start(self, request_id: str, namespace: str | None, match: Match | None, now: float) -> SequenceKv:
        """Open a sequence for a request; shares the match if there is one. Namespace None = neither read nor keep the cache."""
        assert self._free_ids, "more sequences than max_num_running + max_num_cached"
        self._num_opened += 1
        sequence = self._tree.open(self._free_ids.pop(), self._num_opened, namespace)
        if match:
            self.touch(match.source, now)
            self._tree.share(sequence, match)
            self._ops.append(CopyPrefix(request_id, match.source.seq_id, sequence.seq_id, match.num_tokens))
        return sequence

    def touch(self, leaf: SequenceKv, now: float) -> None:
        """A leaf serves, or is about to: others go first."""
        leaf.last_used_s, leaf.held_since_s = now, self.idle_cell_s

    def extend(self, sequence: SequenceKv, tokens: Sequence[int]) -> None:
        """Record computed tokens."""
        self._tree.extend(sequence, tokens)
        assert self._tree.num_used <= self.capacity_tokens, "more cells in use than the pool has"

    def finish(self, sequence: SequenceKv, now: float, *, is_kept: bool = False) -> None:
        """Keep a finished request's sequence as a cached leaf (no copy), unless that would add nothing.

        It adds nothing when another sequence already starts with the same tokens. Leaves that are a prefix of the new one add
        nothing any more and are freed, except where sequences cannot be cut: there each length is a point of reuse of its own.
        """
        if not self.leaves.are_kept or sequence.namespace is None or sequence.length == 0:
            self.free(sequence)
            return
        if self.departures is not None:
            self.departures.forget(sequence)
        tokens = sequence.tokens()
        sequence.is_kept = is_kept
        if self._tree.has_cover(sequence, tokens, is_whole=not self.can_trim):
            self.free(sequence)
            return
        if self.can_trim:
            for leaf in sorted(self._tree.prefix_leaves(sequence, tokens), key=lambda leaf: leaf.order):
                if not leaf.is_kept:
                    self.free(leaf)
        self._tree.deactivate(sequence)
        self.version += 1
        self.touch(sequence, now)
        self.leaves.keep(sequence)
        self.leaves.trim(self.now)

    def free(self, sequence: SequenceKv) -> None:
        """Forget a sequence, running or cached; its id and the cells that only it held are free."""
        self.forget(sequence)
        self._ops.append(TrimSequence(sequence.seq_id, 0))

    def forget(self, sequence: SequenceKv) -> None:
        """Like `free`, for a sequence that the engine has already emptied (a copy that failed)."""
        self.leaves.forget(sequence)
        if self.demotion is not None:
            self.demotion.forget(sequence)
        if self.departures is not None:
            self.departures.forget(sequence)
        self._tree.close(sequence)
        self.version += 1
        self._free_ids.append(sequence.seq_id)

    def evict_one(self, *, must_free: bool = False) -> bool:
        """Evict the cached leaf of least value: see `CachedLeaves.evict_one`."""
        return self.leaves.evict_one(self.now, must_free=must_free)

    def clear(self, now: float, *, with_disk: bool) -> None:
        """Forget all leaves and all that is outside the device, but for what running requests need."""
        self.now = now
        for leaf in self.leaves.all():
            self.free(leaf)
        if self.levels is not None:
            self.levels.holdings.clear(with_disk=with_disk)

    def swap_out(self, sequence: SequenceKv, namespace: str) -> None:
        """Copy the rest of a running sequence that leaves to host memory; the caller pins it there, then frees the sequence.

        `namespace` is where it will be looked up; a private sequence brings one that nobody else has.
        """
        if self.demotion is not None:
            is_private = sequence.namespace is None
            self.demotion.save_rest(sequence, namespace, self.now, is_private=is_private)

    def tick(self, now: float, *, is_busy: bool) -> None:
        """Do some of what can be done in advance: copies to host memory and disk, and the end of what is too old."""
        self.now = now
        if self.departures is not None:
            self.departures.begin_plan()
        if self.demotion is not None and self.levels is not None:
            self.demotion.begin_plan()
            self.leaves.shrink(self.demotion, now, is_busy=is_busy)
            if self.can_trim and self.leaves.may_be_idle(self.idle_cell_s):
                self.release_idle(now)
            self.demotion.step(now, is_busy=is_busy)
            self.levels.writes.order(now, is_busy=is_busy)
            self.levels.holdings.expire(now)

    def release_idle(self, now: float, ahead_s: float = 0.0) -> None:
        """Free leaves that cost the steps more than bringing them back takes.

        Cells are handed out from the lowest free one on, and steps look at all up to the highest used: what is freed only after
        a prompt's first chunk leaves a hole below that chunk.

        Args:
            now: seconds.
            ahead_s: what one idle cell will cost steps that are certain to come, seconds.
        """
        if self.demotion is not None and self.levels is not None and self.can_trim:
            self.leaves.release_idle(self.demotion, self.idle_cell_s, self.levels.load_token_s(now), ahead_s)

    def prepare_room(self, num_wanted: int, num_likely: int) -> None:
        """See that room can be had at once.

        For `num_wanted` cells leaves that are in host memory too are evicted; for `num_likely` more those that would be evicted
        are copied there first. Without host memory nothing is done: what is evicted in advance would be lost.
        """
        if self.demotion is not None and self.num_free < num_wanted + num_likely:
            self.leaves.prepare_room(self.demotion, num_wanted, num_likely)

    def make_room(self, num_tokens: int) -> bool:
        """Evict cached leaves until `num_tokens` cells are free. False, with nothing evicted, when that cannot suffice."""
        if self.num_free + self.num_evictable < num_tokens:
            return False
        while self.num_free < num_tokens:
            is_evicted = self.evict_one(must_free=True)
            assert is_evicted, "evictable cells without a leaf that holds them"
        return True

    def num_reclaimable(self, sequence: SequenceKv) -> int:
        """Cells that freeing a running sequence would make free or evictable."""
        return self._tree.num_reclaimable(sequence)
