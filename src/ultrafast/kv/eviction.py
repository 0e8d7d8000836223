"""The eviction policy: which cached leaf is worth least.

Value = P(reuse) * seconds saved / cells held. Seconds saved and cells held both grow with the length, so what remains is
P(reuse), for which recency is the standing estimate: least recently used goes first. Hits, which count outside the device
(`value`), need no count here: each use of a beginning leaves a leaf that holds its cells, and they stay until the last of these
leaves goes. Among equals the shorter one goes, which saves less of the fixed cost of a prefill. Pinned prompts go last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter

from ultrafast.kv.segment import SequenceKv

eviction_key: Callable[[SequenceKv], tuple[bool, float, int, int]] = attrgetter("is_kept", "last_used_s", "length", "order")
"""The order in which leaves are evicted, smallest first; deterministic."""


def choose_leaf(leaves: Iterable[SequenceKv]) -> SequenceKv | None:
    """Return the leaf to evict first, or None when there is none. O(leaves)."""
    return min(leaves, key=eviction_key, default=None)
