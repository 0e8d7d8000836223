"""Who has come while a step ran: to be added after it, and so before whoever comes next.

|---- step ------------------:-----------|-- added --|
     come     come         a newcomer: is there room behind these and the queue?
"""

from __future__ import annotations

from collections import Counter

from ultrafast.core.request import Request
from ultrafast.core.tiers import ServiceTier


class Coming:
    """Counts them by tier. That they may leave, or be moved to another tier, before they are added does not show here."""

    __slots__ = ("_ids", "_ids_before", "_num", "_num_tokens")

    def __init__(self) -> None:
        self._num: Counter[ServiceTier] = Counter()
        self._num_tokens: Counter[ServiceTier] = Counter()
        self._ids: set[str] = set()
        self._ids_before: set[str] = set()

    def add(self, request: Request) -> None:
        """One more has come, and there is room for it."""
        self._num[request.tier] += 1
        self._num_tokens[request.tier] += request.num_prompt_tokens
        self._ids.add(request.request_id)

    def step_ended(self) -> None:
        """They are added now."""
        if self._ids or self._ids_before:
            self._num.clear()
            self._num_tokens.clear()
            self._ids_before, self._ids = self._ids, set()

    def had_room(self, request_id: str) -> bool:
        """Whether it came during the last step; room that was promised to others since then is not taken from it."""
        return request_id in self._ids_before

    def num_of(self, tier: ServiceTier) -> int:
        return self._num[tier]

    def num_tokens_of(self, tier: ServiceTier) -> int:
        """Their prompt tokens."""
        return self._num_tokens[tier]


NOBODY = Coming()
"""To be left as it is."""
