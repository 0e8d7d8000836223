"""Which runs exist: by digest and by what comes before them.

match(root, tokens)      root -> A (all 128 equal) -> B (all 128 equal) -> C (21 of its 44 equal: used in part, and the end)
"""

from __future__ import annotations

from dataclasses import dataclass

from ultrafast.kv.digest import next_digest
from ultrafast.kv.prefix import common_prefix
from ultrafast.kv.run import Run

_MAX_SIBLINGS_SEARCHED = 64
"""Of many runs after one parent only the newest are compared token by token; equal whole runs are found by digest at once."""


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens [begin, end) of a sequence, found in a run; begin >= run.start, end <= run.end."""

    run: Run
    begin: int
    end: int

    @property
    def num_tokens(self) -> int:
        return self.end - self.begin


class RunIndex:
    """All runs, in the order in which they were made.

    Args:
        run_tokens: length of a whole run; None = a run is always a whole sequence (models whose sequences cannot be cut).
    """

    def __init__(self, run_tokens: int | None) -> None:
        self.run_tokens = run_tokens
        self._by_id: dict[int, Run] = {}
        self._by_digest: dict[bytes, Run] = {}
        self._by_parent: dict[bytes, list[Run]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def runs(self) -> list[Run]:
        return list(self._by_id.values())

    def get(self, run_id: int) -> Run | None:
        return self._by_id.get(run_id)

    def with_digest(self, digest: bytes) -> Run | None:
        return self._by_digest.get(digest)

    def children(self, run: Run) -> list[Run]:
        """Runs that directly follow this one."""
        return self._by_parent.get(run.digest, [])

    def add(self, run: Run) -> None:
        assert run.digest not in self._by_digest, "a run with these tokens exists"
        self._by_id[run.run_id] = run
        self._by_digest[run.digest] = run
        self._by_parent.setdefault(run.parent, []).append(run)

    def remove(self, run: Run) -> None:
        del self._by_id[run.run_id]
        del self._by_digest[run.digest]
        siblings = self._by_parent[run.parent]
        siblings.remove(run)
        if not siblings:
            del self._by_parent[run.parent]

    def match(self, root: bytes, tokens: list[int], limit: int) -> list[Part]:
        """Find the longest usable chain for `tokens[:limit]`, first part first; only the last part may be less than its run."""
        if self.run_tokens is None:
            return self._match_whole(root, tokens, limit)
        found: list[Part] = []
        parent, at = root, 0
        while at < limit:
            part = self._best_after(parent, tokens, at, limit)
            if part is None:
                break
            found.append(part)
            if part.end < at + self.run_tokens:
                break
            parent, at = part.run.digest, part.end
        return found

    def covering(self, parent: bytes, tokens: list[int], begin: int, end: int) -> Run | None:
        """Find a usable run after `parent` that starts with tokens [begin, end)."""
        exact = self._by_digest.get(next_digest(parent, tokens[begin:end]))
        if exact is not None and exact.is_usable:
            return exact
        if self.run_tokens is None or end - begin == self.run_tokens:
            return None
        part = self._best_after(parent, tokens, begin, end)
        return part.run if part is not None and part.end == end else None

    def covered_by(self, run: Run) -> list[Run]:
        """Shorter runs that this one makes superfluous."""
        if self.run_tokens is None:
            return []
        return [
            other
            for other in self._by_parent.get(run.parent, ())
            if other is not run and len(other.tokens) < len(run.tokens) and other.tokens == run.tokens[: len(other.tokens)]
        ]

    def _best_after(self, parent: bytes, tokens: list[int], at: int, limit: int) -> Part | None:
        siblings = self._by_parent.get(parent)
        if not siblings:
            return None
        assert self.run_tokens is not None, "whole sequences have no grid"
        if at + self.run_tokens <= limit:
            exact = self._by_digest.get(next_digest(parent, tokens[at : at + self.run_tokens]))
            if exact is not None and exact.is_usable:
                return Part(exact, at, exact.end)
        best: Part | None = None
        for run in siblings[-_MAX_SIBLINGS_SEARCHED:]:
            if run.is_usable and tokens[at] == run.tokens[0]:
                num_equal = common_prefix(tokens, at, list(run.tokens), 0, limit - at)
                if best is None or num_equal > best.num_tokens:
                    best = Part(run, at, at + num_equal)
        return best

    def _match_whole(self, root: bytes, tokens: list[int], limit: int) -> list[Part]:
        best: Run | None = None
        for run in self._by_parent.get(root, ()):
            is_longer = best is None or len(run.tokens) > len(best.tokens)
            if is_longer and run.is_usable and len(run.tokens) <= limit and list(run.tokens) == tokens[: len(run.tokens)]:
                best = run
        return [Part(best, 0, best.end)] if best is not None else []
