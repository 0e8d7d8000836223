r"""The prefix tree: which cells hold which tokens, for whom; shared cells count once.

Edges split anywhere, so reuse is exact to the token (a chat's next turn also reuses the tail that fills no whole block):

    before                         share(new, first 3 tokens)         extend(new, [9])
    root -- [1 2 3 4 5]  a         root -- [1 2 3]  a, new             root -- [1 2 3]  a, new
                                              \-- [4 5]  a                       \-- [4 5]  a
                                                                                 \-- [9]    new

Only *computed* tokens are in the tree: the scheduler extends it after the forward pass, never before.
The tree does not know sequence ids' meaning, requests or the engine; `kv.ledger` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from ultrafast.kv.prefix import common_prefix
from ultrafast.kv.segment import Segment, SequenceKv

_order = attrgetter("order")


@dataclass(frozen=True, slots=True)
class Match:
    """The longest known prefix of some tokens: the first `num_tokens` of sequence `source`. Valid until the tree changes."""

    num_tokens: int
    segment: Segment
    source: SequenceKv


class PrefixTree:
    """Segments of all sequences, one root per namespace, and the count of their cells.

    Attributes:
        num_used: cells that some sequence holds.
        num_evictable: cells among them that only cached leaves hold.
    """

    def __init__(self) -> None:
        self._roots: dict[str, Segment] = {}
        self.num_used = 0
        self.num_evictable = 0

    def open(self, seq_id: int, order: int, namespace: str | None) -> SequenceKv:
        """Create an empty active sequence. Namespace None = private: nobody finds it, it finds nobody."""
        root = Segment([], 0, None) if namespace is None else self._roots.setdefault(namespace, Segment([], 0, None))
        sequence = SequenceKv(seq_id, order, namespace, root)
        self._hold(root, sequence)
        return sequence

    def match(self, tokens: list[int], namespace: str, limit: int, *, is_whole: bool) -> Match | None:
        """Find the longest prefix of `tokens[:limit]` that some sequence has computed.

        With `is_whole` only a sequence that *is* such a prefix as a whole counts (recurrent state cannot be cut).
        """
        root = self._roots.get(namespace)
        if root is None:
            return None
        best: tuple[int, int] = (0, 0)
        found: Match | None = None
        for segment, num_equal in self._walk(root, tokens, limit):
            end = segment.start + num_equal
            if end < best[0]:
                continue
            holders = [holder for holder in segment.holders if holder.length == end] if is_whole else segment.holders
            oldest = min(holders, key=_order, default=None)
            if oldest is not None and (end, -oldest.order) > best:
                best, found = (end, -oldest.order), Match(end, segment, oldest)
        return found if best[0] else None

    def share(self, sequence: SequenceKv, match: Match) -> None:
        """Let an empty sequence of the same namespace hold the matched cells."""
        assert sequence.length == 0, f"sequence {sequence.seq_id} is not empty"
        assert match.source.root is sequence.root, "prefixes are shared inside one namespace only"
        segment = match.segment
        if match.num_tokens < segment.end:
            segment = self._split(segment, match.num_tokens - segment.start)
        sequence.tail, sequence.length = segment, match.num_tokens
        for node in sequence.path()[:-1]:
            self._hold(node, sequence)

    def extend(self, sequence: SequenceKv, tokens: Sequence[int]) -> None:
        """Append computed tokens. O(len(tokens)) when the sequence owns its tail alone, which is the rule while it decodes."""
        tail = sequence.tail
        if tail is sequence.root or len(tail.holders) > 1:
            tail = Segment([], sequence.length, sequence.tail)
            sequence.tail.children.setdefault(tokens[0], []).append(tail)
            self._hold(tail, sequence)
            sequence.tail = tail
        tail.tokens += tokens
        sequence.length += len(tokens)
        self.num_used += len(tokens)

    def close(self, sequence: SequenceKv) -> None:
        """Forget a sequence; cells that nobody else holds are free."""
        for segment in sequence.path():
            segment.holders.discard(sequence)
            if sequence.is_active:
                self._deactivate(segment)
            if not segment.holders:
                self._remove(segment)
        if sequence.namespace is not None and not sequence.root.holders:
            del self._roots[sequence.namespace]

    def deactivate(self, sequence: SequenceKv) -> None:
        """Turn a running request's sequence into a cached leaf."""
        assert sequence.is_active, f"sequence {sequence.seq_id} is already a leaf"
        sequence.is_active = False
        for segment in sequence.path():
            self._deactivate(segment)

    def num_reclaimable(self, sequence: SequenceKv) -> int:
        """Cells that closing this sequence would make free, or evictable where cached leaves hold them too."""
        own = 1 if sequence.is_active else 0
        return sum(len(segment.tokens) for segment in sequence.path() if segment.num_active == own)

    def num_evictable_in(self, match: Match) -> int:
        """Cells of the match that count as evictable now and would not once it is shared."""
        total, node = 0, match.segment
        end = match.num_tokens
        while node.parent is not None:
            if node.num_active == 0:
                total += end - node.start
            end, node = node.start, node.parent
        return total

    def has_cover(self, sequence: SequenceKv, tokens: list[int], *, is_whole: bool) -> bool:
        """Whether another sequence starts with exactly this sequence's tokens (and, with `is_whole`, ends there too)."""
        return any(
            holder is not sequence and (not is_whole or holder.length == sequence.length)
            for segment, num_equal in self._walk(sequence.root, tokens, len(tokens))
            if segment.start + num_equal == len(tokens)
            for holder in segment.holders
        )

    def prefix_leaves(self, sequence: SequenceKv, tokens: list[int]) -> list[SequenceKv]:
        """Cached leaves whose tokens are a prefix of this sequence's."""
        return [
            holder
            for segment, num_equal in self._walk(sequence.root, tokens, len(tokens))
            if num_equal == len(segment.tokens)
            for holder in segment.holders
            if holder is not sequence and not holder.is_active and holder.length == segment.end
        ]

    def _walk(self, root: Segment, tokens: list[int], limit: int) -> Iterator[tuple[Segment, int]]:
        """Yield every segment that continues `tokens[:limit]`, twins included, with how many of its tokens agree."""
        limit = min(limit, len(tokens))
        stack = [root]
        while stack:
            node = stack.pop()
            at = node.end
            if at >= limit:
                continue
            for child in node.children.get(tokens[at], ()):
                num_equal = common_prefix(tokens, at, child.tokens, 0, limit - at)
                yield child, num_equal
                if num_equal == len(child.tokens):
                    stack.append(child)

    def _split(self, segment: Segment, num_tokens: int) -> Segment:
        """Cut a segment in two; returns the new front. The back stays the same object: tails may point to it."""
        parent = segment.parent
        assert parent is not None, "the root has no tokens to split"
        assert 0 < num_tokens < len(segment.tokens), "a split leaves two non-empty parts"
        front = Segment(segment.tokens[:num_tokens], segment.start, parent)
        front.holders = set(segment.holders)
        front.num_active = segment.num_active
        siblings = parent.children[segment.tokens[0]]
        siblings[siblings.index(segment)] = front
        segment.tokens = segment.tokens[num_tokens:]
        segment.start += num_tokens
        segment.parent = front
        front.children[segment.tokens[0]] = [segment]
        return front

    def _hold(self, segment: Segment, sequence: SequenceKv) -> None:
        assert sequence.is_active, "only running requests start to hold cells"
        if segment.num_active == 0 and segment.holders:
            self.num_evictable -= len(segment.tokens)
        segment.holders.add(sequence)
        segment.num_active += 1

    def _deactivate(self, segment: Segment) -> None:
        segment.num_active -= 1
        if segment.num_active == 0:
            self.num_evictable += len(segment.tokens)

    def _remove(self, segment: Segment) -> None:
        assert not segment.children, "a segment without holders cannot have children"
        self.num_used -= len(segment.tokens)
        self.num_evictable -= len(segment.tokens)
        if segment.parent is None:
            return
        siblings = segment.parent.children[segment.tokens[0]]
        siblings.remove(segment)
        if not siblings:
            del segment.parent.children[segment.tokens[0]]
