r"""The two records of the prefix tree: a run of cells, and a sequence that holds a path of such runs.

A *cell* is room for one token in the engine's KV pool. A sequence's tokens lie in segments from the root to its tail:

    root -- [You are helpful.] -- [Hi!]          <- sequence 3: tail is [Hi!]
                              \-- [What is KV?]  <- sequence 5
                              \-- [What is KV?]  <- sequence 8 computed the same tokens by itself: other cells, a twin

Invariants: a sequence ends where its tail ends; the holders of a segment are a subset of its parent's; a segment without
holders does not exist.
"""

from __future__ import annotations


class Segment:
    """Cells of the tokens [start, start + len(tokens)), the same for every sequence in `holders`.

    Attributes:
        children: by first token; twins (equal tokens in other cells) share a list.
        num_active: how many of the holders are running; 0 = only cached leaves hold it, so it can be evicted.
    """

    __slots__ = ("children", "holders", "num_active", "parent", "start", "tokens")

    def __init__(self, tokens: list[int], start: int, parent: Segment | None) -> None:
        self.tokens = tokens
        self.start = start
        self.parent = parent
        self.children: dict[int, list[Segment]] = {}
        self.holders: set[SequenceKv] = set()
        self.num_active = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class SequenceKv:
    """The KV of one sequence: a running request's, or a finished one's that is kept for reuse (a cached leaf).

    Attributes:
        seq_id: its number in the engine.
        namespace: sequences of one namespace may share cells; None = private, with nobody.
        order: grows with every sequence that is started; older ones are preferred as the source of a copy.
        length: tokens whose KV exists (cells that were written).
        is_active: True while a request runs on it, False for a cached leaf.
        is_kept: a pinned prompt: the last to be evicted.
        last_used_s: when it last served; meaningful for leaves.
        held_since_s: what an idle cell had cost in all when it last served (`KvLedger.idle_cell_s`).
    """

    __slots__ = ("held_since_s", "is_active", "is_kept", "last_used_s", "length", "namespace", "order", "root", "seq_id", "tail")

    def __init__(self, seq_id: int, order: int, namespace: str | None, root: Segment) -> None:
        self.seq_id = seq_id
        self.order = order
        self.namespace = namespace
        self.root = root
        self.tail = root
        self.length = 0
        self.is_active = True
        self.is_kept = False
        self.last_used_s = 0.0
        self.held_since_s = 0.0

    def path(self) -> list[Segment]:
        """Segments from the tail up to and including the root."""
        segments: list[Segment] = []
        node: Segment | None = self.tail
        while node is not None:
            segments.append(node)
            node = node.parent
        return segments

    def tokens(self) -> list[int]:
        """All tokens, first to last. O(length): for rare moments, never per step."""
        found: list[int] = []
        for segment in reversed(self.path()):
            found += segment.tokens
        return found
