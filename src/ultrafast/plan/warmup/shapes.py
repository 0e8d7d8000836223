"""Which shapes traffic has: a few sizes that stand for all. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

MAX_CLUSTERS = 8
_NUM_ROUNDS = 50
_COVERED = 0.9
"""A cluster's shape is a size that this share of its members does not exceed."""
_CONCURRENCY_QUANTILES = (0.5, 0.9, 0.99, 1.0)


def cluster_lengths(lengths: Sequence[int], max_clusters: int = MAX_CLUSTERS) -> list[int]:
    """At most `max_clusters` sizes that stand for all lengths, ascending.

    k-means (Lloyd) on the logarithm: 100 and 200 tokens differ as much as 1000 and 2000. It begins with evenly spaced quantiles,
    so the same lengths give the same sizes.
    """
    ordered = sorted(length for length in lengths if length > 0)
    if not ordered:
        return []
    logs = [math.log(length) for length in ordered]
    num_clusters = min(max_clusters, len(set(ordered)))
    centres = sorted({logs[(2 * i + 1) * len(logs) // (2 * num_clusters)] for i in range(num_clusters)})
    for _ in range(_NUM_ROUNDS):
        borders = _borders(logs, centres)
        moved = [sum(logs[a:b]) / (b - a) for a, b in borders if b > a]
        if moved == centres:
            break
        centres = moved
    return sorted({ordered[a + math.ceil(_COVERED * (b - a)) - 1] for a, b in _borders(logs, centres) if b > a})


def _borders(logs: Sequence[float], centres: Sequence[float]) -> list[tuple[int, int]]:
    """Which part of the sorted values is nearest to each of the sorted centres."""
    middles = [(left + right) / 2 for left, right in itertools.pairwise(centres)]
    cuts, at = [0], 0
    for middle in middles:
        while at < len(logs) and logs[at] <= middle:
            at += 1
        cuts.append(at)
    return list(zip(cuts, [*cuts[1:], len(logs)], strict=True))


def concurrency_levels(spans: Sequence[tuple[float, float]]) -> list[int]:
    """How many of these (begin, end) overlap: at P50, P90, P99 of the busy time, and at most. Ascending, without repeats."""
    marks = sorted([(begin, 1) for begin, end in spans if end > begin] + [(end, -1) for begin, end in spans if end > begin])
    time_at: dict[int, float] = {}
    level, since_s = 0, 0.0
    for at_s, change in marks:
        if level:
            time_at[level] = time_at.get(level, 0.0) + at_s - since_s
        level, since_s = level + change, at_s
    found, total_s = [], sum(time_at.values())
    for quantile in _CONCURRENCY_QUANTILES if total_s else ():
        passed_s = 0.0
        for level in sorted(time_at):
            passed_s += time_at[level]
            if passed_s >= quantile * total_s * (1 - 1e-12):
                found.append(level)
                break
    return sorted(set(found))
