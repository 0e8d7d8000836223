"""The books of the draft model's KV: who has which sequence there, and how much of it is right.

    cells of a sequence   [ right ............ | wrong guesses ]
                           0        num_right              num_cells

Sequences are few: one for each request that may guess at a time. A request that needs room takes it from those that do not guess
now; they read their text again when their turn comes. Pure: the bytes are the engine's, which empties `freed` sequences first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ultrafast.sched.limits import DraftLimits


@dataclass(slots=True)
class _Held:
    seq_id: int
    num_right: int = 0
    num_cells: int = 0
    num_reserved: int = 0


class DraftKv:
    """Requests are known by id."""

    def __init__(self, limits: DraftLimits) -> None:
        self._capacity_tokens = limits.kv_capacity_tokens
        self._free_ids = list(reversed(range(limits.num_sequences)))
        self._held: dict[str, _Held] = {}
        self._freed: list[int] = []

    @property
    def num_cells(self) -> int:
        """Cells in use, or promised for this step."""
        return sum(max(held.num_cells, held.num_reserved) for held in self._held.values())

    @property
    def freed(self) -> tuple[int, ...]:
        """Sequences to empty; the same ones again until `emptied` is called."""
        return tuple(self._freed)

    def num_right(self, request_id: str) -> int:
        """Leading tokens of the request's text that are there."""
        held = self._held.get(request_id)
        return held.num_right if held is not None else 0

    def open(self, request_id: str, num_tokens: int, kept: Collection[str]) -> bool:
        """Make sure of a sequence with room for `num_tokens` tokens in all in this step; those in `kept` lose nothing for it.

        Returns:
            False when there is no room.
        """
        others = [other for other in self._held if other != request_id and other not in kept]
        while not self._has_room(request_id, num_tokens):
            if not others:
                return False
            self.release(others.pop(0))
        if request_id not in self._held:
            self._held[request_id] = _Held(self._free_ids.pop())
        self._held[request_id].num_reserved = num_tokens
        return True

    def seq_id(self, request_id: str) -> int:
        """The sequence of a request for which `open` found one."""
        return self._held[request_id].seq_id

    def wrote(self, request_id: str, num_right: int, num_cells: int) -> None:
        """The sequence now has so many cells, of which the first `num_right` are known to be right."""
        held = self._held[request_id]
        held.num_right, held.num_cells, held.num_reserved = num_right, num_cells, 0

    def confirm(self, request_id: str, num_right: int) -> None:
        """So many cells turned out right."""
        held = self._held.get(request_id)
        if held is not None:
            held.num_right = min(num_right, held.num_cells)

    def retain(self, request_ids: Collection[str]) -> None:
        """A new step: release all others; promises made for the last one are void."""
        for held in self._held.values():
            held.num_reserved = 0
        for request_id in [other for other in self._held if other not in request_ids]:
            self.release(request_id)

    def release(self, request_id: str) -> None:
        seq_id = self._held.pop(request_id).seq_id
        self._free_ids.append(seq_id)
        self._freed.append(seq_id)

    def emptied(self, seq_ids: Collection[int]) -> None:
        """The engine has emptied these."""
        self._freed = [seq_id for seq_id in self._freed if seq_id not in seq_ids]

    def _has_room(self, request_id: str, num_tokens: int) -> bool:
        held = self._held.get(request_id)
        if held is None and not self._free_ids:
            return False
        own = max(held.num_cells, held.num_reserved) if held is not None else 0
        return self.num_cells - own + num_tokens <= self._capacity_tokens
