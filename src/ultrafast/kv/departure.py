"""Copies a running sequence's KV to host memory run by run, over several steps, before it has to leave the device.

    step n      |## copied ##|## copied ##|................|.....|        the sequence may go on and grow meanwhile
    step n+1    |## copied ##|## copied ##|## copied ##....|......|
    ready       |## copied ##|## copied ##|## copied ##|###|......|       all whole runs: only the short end is left

So nobody waits for a long sequence to be copied in one go. What is copied is pinned until the sequence leaves or ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ultrafast.kv.digest import next_digest
from ultrafast.kv.gate import BUSY_SHARE, Way
from ultrafast.kv.index import Part
from ultrafast.kv.levels import KvLevels
from ultrafast.kv.run import RUN_TOKENS, Missing, Run
from ultrafast.kv.segment import SequenceKv


@dataclass(slots=True)
class _Copied:
    """Tokens [0, end) are outside the device; `parent` is their digest. `is_full`: there is no room for more."""

    parent: bytes
    end: int = 0
    is_full: bool = False
    parts: list[Part] = field(default_factory=list)


class Departures:
    """Owned by the ledger, where sequences can be cut and there is host memory.

    Attributes:
        spent_s: predicted time of the copies ordered since the current plan began.
        is_in_use: copies were ordered for the plan before: somebody waits for them.
    """

    def __init__(self, levels: KvLevels) -> None:
        self._levels = levels
        self._copied: dict[SequenceKv, _Copied] = {}
        self._next_s = 0.0
        self.spent_s = 0.0
        self.is_in_use = False

    def begin_plan(self) -> None:
        """A new step has its own time to spend."""
        self.is_in_use = self.spent_s > 0
        self.spent_s = 0.0

    def _num_runs_left(self, sequence: SequenceKv) -> int:
        """Whole runs that are not outside yet; none where there is no room for them."""
        copied = self._copied.get(sequence)
        if copied is None:
            return sequence.length // RUN_TOKENS
        return 0 if copied.is_full else (sequence.length - copied.end) // RUN_TOKENS

    def advance(self, sequence: SequenceKv, namespace: str, now: float, budget_s: float) -> bool:
        """Copy the next whole runs while the step's copies stay within `budget_s`, and one at least.

        No more than one while the speed of copies was not measured lately: its time is a guess.

        Returns:
            True once it is ready: what is left is less than a run, or can be copied nowhere.
        """
        if not self._num_runs_left(sequence):
            return True
        copied = self._copied.get(sequence) or _Copied(self._levels.root(namespace))
        self._copied[sequence] = copied
        tokens = sequence.tokens()
        while copied.end + RUN_TOKENS <= len(tokens) and not copied.is_full:
            piece = Missing(copied.parent, copied.end, copied.end + RUN_TOKENS)
            run = self._levels.holdings.index.covering(piece.parent, tokens, piece.begin, piece.end)
            if run is None:
                cost_s = self._cost_s(now)
                is_guess = not self._levels.bandwidths.is_known(Way.SAVE, now)
                if self.spent_s and (is_guess or self.spent_s + cost_s > budget_s):
                    return False
                run = self._save(piece, sequence, tokens, now)
                self.spent_s += cost_s
            if run is None:
                copied.is_full = True
            else:
                self._take(copied, Part(run, piece.begin, piece.end), tokens)
        return True

    def ahead(self, sequence: SequenceKv, namespace: str, now: float, *, num_steps: int, budget_s: float) -> None:
        """Copy in advance what may have to leave in about `num_steps` steps.

        As long as that is far away, a run now and then, which takes a small share of the time of those who run; then a run in
        each step; and when even that would be too late, what fits into `budget_s`.
        """
        num_runs = self._num_runs_left(sequence)
        if not num_runs or (now < self._next_s and num_steps > 2 * num_runs):
            return
        self.advance(sequence, namespace, now, budget_s if num_steps < num_runs else 0.0)
        self._next_s = now + BUSY_SHARE * self._cost_s(now)

    def forget(self, sequence: SequenceKv) -> None:
        """The sequence has left, ended, or is not needed to leave any more."""
        copied = self._copied.pop(sequence, None)
        if copied is not None:
            self._levels.holdings.unpin(copied.parts)

    def forget_all(self) -> None:
        """There is room again."""
        for sequence in list(self._copied):
            self.forget(sequence)

    def _save(self, piece: Missing, sequence: SequenceKv, tokens: list[int], now: float) -> Run | None:
        is_private = sequence.namespace is None
        if not self._levels.save(piece, sequence.seq_id, tokens, now, is_private=is_private):
            return None
        return self._levels.holdings.index.covering(piece.parent, tokens, piece.begin, piece.end)

    def _take(self, copied: _Copied, part: Part, tokens: list[int]) -> None:
        self._levels.holdings.pin([part])
        copied.parts.append(part)
        copied.parent = next_digest(copied.parent, tokens[part.begin : part.end])
        copied.end = part.end

    def _cost_s(self, now: float) -> float:
        return self._levels.bandwidths.seconds(Way.SAVE, self._levels.limits.estimated_bytes(RUN_TOKENS), now)
